"""Results of runs: grids of runs, their archive and their report.

grid            the command: makes what is left of a grid's runs, then the report
grid_file       the schema of a grid file and its digest
grid_runs       the runs that a grid file names
making          makes several runs at a time, each with a note of the file's digest
tuning          chooses the best trial of each method on validation data
archive         reads and writes the records of all runs in one compressed file
evidence        the exact sign-flip permutation test, Holm's correction, intervals
answers         gives a verdict for each question and setting
grid_report     writes the report in Markdown and CSV
grid_figures    draws the report's figures
"""
