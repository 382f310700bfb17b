"""What users import: all there, all described, and free of charge until it is used."""

import inspect
import pickle
import subprocess
import sys

import pytest

import raypool
from raypool import errors

NAMES = [name for name in raypool.__all__ if name != "__version__"]


def test_no_name_is_there_twice_and_dir_shows_them_all():
    assert len(set(raypool.__all__)) == len(raypool.__all__)
    assert set(dir(raypool)) >= set(raypool.__all__)


@pytest.mark.parametrize("name", raypool.__all__)
def test_every_public_name_can_be_imported(name):
    assert getattr(raypool, name) is not None


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_a_docstring_of_its_own(name):
    value = getattr(raypool, name)
    inherited = {base.__doc__ for base in value.__mro__[1:]} if inspect.isclass(value) else set()
    assert value.__doc__ and value.__doc__ not in inherited


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'raypool' has no attribute 'Pool'"):
        raypool.Pool  # noqa: B018


WITHOUT_RAY = """
import sys, raypool
raypool.simulate, raypool.BrokerConfig, raypool.RequestView, raypool.Preempted, raypool.__version__
sys.exit("ray" in sys.modules)
"""


def test_all_but_the_client_comes_without_ray():
    assert subprocess.run([sys.executable, "-c", WITHOUT_RAY], check=False).returncode == 0


ERRORS = [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, errors.RaypoolError)]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_is_one_tree_and_crosses_processes_whole(error):
    given = error("what, why, what to try")
    if isinstance(given, errors.RequestError):
        given.request_id = "a"
    again = pickle.loads(pickle.dumps(given))
    assert (type(again), str(again), vars(again)) == (error, str(given), vars(given))


def test_the_errors_are_what_pythons_own_are_too():
    assert issubclass(raypool.SpecError, ValueError)
    assert issubclass(raypool.WaitTimeout, TimeoutError)
