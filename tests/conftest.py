"""Generated examples are the same in every run and have no deadline: no test needs luck."""

from hypothesis import settings

settings.register_profile("raypool", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("raypool")
