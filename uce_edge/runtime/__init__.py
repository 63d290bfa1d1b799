"""Running a model file: model, prediction, session, scheduler of passes, early stopping."""
