"""Groups that are drawn together, where all groups of a section would be too many for one plot."""

import dataclasses
from collections.abc import Iterator

from train.report.groups import Group, Section, counterparts

MOST = 10
"""Curves that can still be told apart."""

_WITHOUT_TAG = ("sgd", "stable-sgd")
_PLAIN = ("sgd", "adagrad", "rmsprop", "adam", "tag-rmsprop", "tag-adagrad", "tag-adam")
_WEIGHTED = ("tag-rmsprop", "tag-uniform", "tag-age", "tag-g", "tag-self")


@dataclasses.dataclass(frozen=True)
class Family:
    """Some groups of a section, and what they have in common."""

    name: str
    """Empty where it is the whole section."""
    groups: list[Group]


def families(section: Section) -> list[Family]:
    """All groups together, or the comparisons that the paper draws; every group is in one."""
    if len(section.groups) <= MOST:
        return [Family("", section.groups)]
    kinds = {
        "methods": [group for group in section.groups if _is_method(group)],
        "optimizers": [group for group in section.groups if _is_plain(group)],
        "TAG": [group for group in section.groups if _has_weights(group)],
    }
    drawn = {group.label for groups in kinds.values() for group in groups}
    rest = {_kind(group) for group in section.groups if group.label not in drawn}
    kinds["settings"] = [group for group in section.groups if _kind(group) in rest]
    return [part for name, groups in kinds.items() for part in _parted(name, groups)]


def pairs(section: Section) -> list[tuple[Group, Group]]:
    """Each group without TAG beside the one with it, as the paper pairs them."""
    return [
        (without, tagged)
        for tagged in section.groups
        for without in section.groups
        if not without.apart and not tagged.apart and counterparts(without.config, tagged.config)
    ]


def _is_method(group: Group) -> bool:
    ours = _kind(group) == ("naive", "tag-rmsprop")
    return not group.apart and (ours or group.config.optimizer in _WITHOUT_TAG)


def _is_plain(group: Group) -> bool:
    return not group.apart and group.config.method == "naive" and group.config.optimizer in _PLAIN


def _has_weights(group: Group) -> bool:
    """TAG-RMSProp, alone and with a method, and what else its weights may come from."""
    return not group.apart and group.config.optimizer in _WEIGHTED


def _kind(group: Group) -> tuple[str, str]:
    return group.config.method, group.config.optimizer


def _parted(name: str, groups: list[Group]) -> Iterator[Family]:
    several = len(groups) > MOST
    for number, start in enumerate(range(0, len(groups), MOST), start=1):
        yield Family(f"{name} {number}" if several else name, groups[start : start + MOST])
