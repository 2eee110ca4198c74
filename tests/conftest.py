"""What all tests share: no law is judged by the clock, which on a busy machine says nothing of the code."""

from hypothesis import settings

settings.register_profile("house", deadline=None)
settings.load_profile("house")
