"""The command line: `arguments` says what may be given, `commands` what each command does, `main`
how it ends, `display` what a terminal shows meanwhile. It may import all other packages of `train`.
"""
