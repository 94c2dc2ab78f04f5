"""All that is about the paper: its settings, the grids that it searched, and its printed figures.

Malviya, Ravindran and Chandar, "TAG: Task-based Accumulated Gradients for Lifelong learning",
CoLLAs 2022 (https://arxiv.org/abs/2105.05155): `results.csv` holds what its tables print,
`author_results.csv` what its authors logged, which has runs that the paper only plots.

`presets` and `grids` say which settings go with a stream, a method and an optimizer, `figures`
which figure a run is to be compared with. Imports `train.run.config` and what lies below it; is
imported by the command line and the report alone.
"""

from train.paper.figures import MAIN_TABLE, STREAMS, Reference, departures, reference

__all__ = ["MAIN_TABLE", "STREAMS", "Reference", "departures", "reference"]
