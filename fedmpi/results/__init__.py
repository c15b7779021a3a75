"""Results of runs: one reader of a run, one figure engine, grids of runs with their archive and report.

run          reads a run's folder
show         the command `fedmpi show`: how far runs are, a page, figures, CSV
page         writes runs as one HTML page, also when a run ends
figure       draws every figure, with matplotlib

grid         the command `fedmpi grid`: makes what is left of a grid's runs, then the report
grid_file    the schema of a grid file, its digest, and its runs; `printed` has the schema of a paper's tables
launch       makes runs here, several at a time, or hands them to Slurm
archive      reads and writes the records of all runs in one compressed file, and what was fixed before them
frame        turns the records of runs into tables (pandas): points of curves, what a run ends with, means over
                seeds; groups runs that differ by nothing but their seed
evidence     the exact sign-flip permutation test, Holm's correction, intervals
answers      chooses the best trial of each method, and gives a verdict for each question and setting
grid_report  writes the report as Markdown, LaTeX and CSV, draws its figures, and puts a paper's numbers beside ours
"""
