"""Pass@K, evaluation of runs and models, and reports."""
