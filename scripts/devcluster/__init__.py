"""A real one-machine Backend.AI cluster for development, tests and the quick start.

Only the standard library is used here: these modules run before anything is installed.
"""
