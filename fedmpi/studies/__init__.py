"""Many runs: they are started, submitted, compared, and put beside the numbers of the papers.

runs            a run's folder, read as a value: config, records, results
launch          runs to be made, each a command of its own
arguments       arguments that several programs have, and their types
reproduce       the program `jobs/reproduce.py`: `reproduction` says which runs a table of a paper needs, `measures`
                what a run's records say in the papers' quantities, `tables` and `figures` what is shown
"""
