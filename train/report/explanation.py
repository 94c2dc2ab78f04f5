"""How to read the tables, for every form of the report."""

PAPER = (
    "Malviya, Ravindran and Chandar, “TAG: Task-based Accumulated Gradients for Lifelong "
    "learning”, CoLLAs 2022"
)
LINK = "https://arxiv.org/abs/2105.05155"


def explanation(*, compared: bool) -> list[str]:
    """Paragraphs.

    >>> len(explanation(compared=True)), len(explanation(compared=False))
    (2, 1)
    """
    paragraphs = [
        "Means over seeds ± standard deviation (ddof 0), at the end of the stream. Accuracy: the "
        "mean over all tasks. Forgetting: how far the earlier tasks have fallen from their best, "
        "on average. Learned: the mean accuracy on each task just after it was learned. BWT "
        "(backward transfer): what later tasks added to the earlier ones, on average."
    ]
    if compared:
        paragraphs.append(
            f"Paper: the figure of {PAPER}, as its tables print it unless a note says otherwise. "
            "Δ: the measured mean minus the paper's, in units of the paper's standard deviation σ; "
            "– where there is nothing to compare."
        )
    return paragraphs
