"""Wherever the broker's process dies, all ends as if it had not.

RAYPOOL_CRASHES says at how many points of each story it dies (default 3, spread over the story; `make test` takes
more; "all": at every one, thousands in all, as `make chaos` has it).
"""

from __future__ import annotations

import os
import random

import pytest

from .crash_points import (
    Step,
    asked_in,
    ending,
    handed_over,
    play,
    random_story,
    story_of_hand_overs,
    story_of_many,
)

STORIES = {str(seed): random_story(seed) for seed in range(8)} | {
    "hand-overs": story_of_hand_overs(),
    "many at once": story_of_many(),
}
CRASHES = os.environ.get("RAYPOOL_CRASHES", "3")


def points_of(count: int, seed: int) -> list[int]:
    every = list(range(1, count + 1))
    if CRASHES == "all" or int(CRASHES) >= count:
        return every
    return sorted(random.Random(seed).sample(every, int(CRASHES)))


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_a_story_ends_the_same_wherever_the_process_dies(story: list[Step]) -> None:
    undisturbed = play(story)
    assert undisturbed.points > 100
    for point in points_of(undisturbed.points, len(story)):
        crashed = play(story, {point})
        assert len(crashed.died_at) == 1
        assert ending(crashed) == ending(undisturbed), f"died at point {point}, {crashed.died_at[0]}"


def test_in_the_story_of_hand_overs_groups_are_handed_over() -> None:
    world = play(story_of_hand_overs())
    pairs = [("a0", "a3"), ("a1", "a4"), ("a2", "a5"), ("a3", "a6"), ("a4", "a7"), ("c0", "c3")]
    assert handed_over(world) == pairs


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_nothing_is_lost_or_doubled_when_it_dies_again_and_again(story: list[Step]) -> None:
    """Also while it comes back, and without a rest between the steps: then who is first may differ, and
    what must hold at the end is looked at by `play`."""
    chance = random.Random(len(story))
    asked = {id for id, _ in asked_in(story)} - {step[1] for step in story if step[0] == "forget"}
    for _ in range(60 if CRASHES == "all" else max(1, int(CRASHES) // 3)):
        deaths, at = set(), 0
        for _ in range(30):
            at += chance.randint(1, 25)
            deaths.add(at)
        crashed = play(story, deaths, settle=chance.choice((0.0, 0.003, 0.3)))
        assert len(crashed.died_at) > 3
        assert asked <= set(crashed.actor.broker.requests)


@pytest.mark.timeout(600)
def test_a_process_can_die_at_every_kind_of_point() -> None:
    wanted = {
        "before save", "after save", "before create_group", "after create_group", "after created",
        "before remove_group", "after remove_group", "after free",
    }  # fmt: skip
    places: set[str] = set()
    for seed in range(3):
        story = random_story(seed)
        points = list(range(1, play(story).points))
        random.Random(seed).shuffle(points)
        for point in points[:100]:
            places |= set(play(story, {point}).died_at)
            if wanted <= places:
                return
    raise AssertionError(places)
