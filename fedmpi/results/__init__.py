"""Results of runs: one reader of a run, one figure engine, grids of runs with their archive and report.

run             reads a run's folder
show            the command `fedmpi show`: how far runs are, a page, figures, CSV
compared        groups runs that differ by nothing but their seed
page            writes runs as one HTML page, also when a run ends
figure          draws every figure, with matplotlib

grid            the command `fedmpi grid`: makes what is left of a grid's runs, then the report
grid_file       the schema of a grid file and its digest
grid_runs       names the runs of a grid file
budget          scales rounds and local epochs
launch          makes runs here, several at a time
notes           notes beside each run what was asked when it began, and refuses what has changed since
tuning          chooses the best trial of each method on validation data
archive         reads and writes the records of all runs in one compressed file
measures        computes a run's numbers from its records
evidence        the exact sign-flip permutation test, Holm's correction, intervals
answers         gives a verdict for each question and setting
grid_report     writes the report as Markdown, LaTeX and CSV
grid_figures    draws the report's figures
printed         puts a paper's tables beside our runs; `printed_report` writes and draws them
"""
