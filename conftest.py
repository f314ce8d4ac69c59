"""The profiles of hypothesis, for the tests of the project and of its plugins, also where only some of them run."""

import os

import hypothesis

# Deterministic, so that a failure comes back; REMOTE_UDF_SEED=random looks for new ones. Hypothesis prints the seed.
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.register_profile("random", deadline=None, print_blob=True)
hypothesis.settings.register_profile("unit", derandomize=True, deadline=None, print_blob=True, max_examples=10)
# `make test`; CI, which runs `make test-all`, draws all.
RANDOM = os.environ.get("REMOTE_UDF_SEED") == "random"
hypothesis.settings.register_profile("quick", derandomize=not RANDOM, deadline=None, print_blob=True, max_examples=25)
hypothesis.settings.load_profile("random" if RANDOM else "fixed")
