"""A study: questions, methods, seeds and tests that are written down before the runs, in one YAML file.

conduct         the command `fedmpi study`
asked           the file: what may stand in it, and its digest
wanted          the runs that the file asks for
making          several runs at a time; each notes the digest of the file before it begins
choice          which trial of each method is best on validation data
kept            the records of all runs in one compressed file, from which everything is shown
evidence        exact sign-flip permutation test, Holm's correction, intervals
answers         a verdict for each question and setting
findings        the report in Markdown
plots           the figures
"""
