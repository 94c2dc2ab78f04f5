"""How the command line begins and ends: what a user can fix is one sentence, never a traceback."""

import io
import shlex
import signal
import sys
from collections.abc import Sequence

import rich.console

from train.cli.arguments import RunCommand, parse
from train.cli.commands import execute
from train.cli.display import Display
from train.errors import AFTER_SIGNAL, DONE, FAILED, REFUSED, UserError
from train.launch import hosts as launched
from train.run import checkpoint, hosts
from train.run.signals import Stopped


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what the arguments say, and returns how the process is to end.

    0   It is done.
    1   A run failed, and the others are done; also how Python ends after an error of ours.
    2   The request was wrong, or a file or a place cannot be read or written: one sentence on
        stderr says what to do. The parser ends with it too.
    3   Kept for a worker (`train.launch.worker`) whose loss is no longer finite.
    4   Another process of a run over several hosts is gone.
    128 + n   After signal n; a run under way is saved.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A path may be no text, and a terminal may lack ±: neither may end a run.
            stream.reconfigure(errors="backslashreplace")
    checkpoint.quiet()
    display = Display(rich.console.Console())
    try:
        command = parse(arguments)
        if isinstance(command, RunCommand) and launched.needs_guard(command.hosts):
            return launched.run_guarded(arguments)
        return DONE if execute(command, display) else FAILED
    except UserError as error:
        return _refuse(str(error))
    except OSError as error:  # A full disk, a place of somebody else's, a name that is too long.
        named = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        return _refuse(f"{named or error}")
    except MemoryError as error:
        return _refuse(f"Not enough memory. {error}")
    except hosts.Lost as lost:
        hosts.end_alone(lost)
    except KeyboardInterrupt:  # Before or after the steps, which end as below.
        return AFTER_SIGNAL + signal.SIGINT
    except Stopped as stopped:
        again = shlex.join(["python", "-m", "train", *arguments])
        display.say(f"Stopped at {stopped}; everything is saved. To go on: {again}")
        return AFTER_SIGNAL + stopped.signum


def _refuse(why: str) -> int:
    line = " ".join(why.split())  # What a library says may have several.
    rich.console.Console(stderr=True).print(
        f"error: {line}", soft_wrap=True, markup=False, emoji=False
    )
    return REFUSED
