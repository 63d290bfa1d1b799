"""Whether a model file is the published one: digests, verification, self-test, signing."""
