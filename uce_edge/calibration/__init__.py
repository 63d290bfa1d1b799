"""Fitting numbers to a model's answers: calibration maps, the error map, rejection with a promise. Numpy alone."""
