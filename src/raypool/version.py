"""The version, read from the installed package so that it stands in one place only."""

from importlib.metadata import version

__version__ = version("raypool")
