"""`python -m fedmpi.verify`: what the papers print of sizes, compute and bytes, against nets that are built.

Every printed number that follows from the nets alone is a claim: the facts of the papers' data
files, the cells of their computed tables, and the sizes in the row labels of the others. A module
per paper (`paper_fedhm`, ...) has the functions that compute ours, out of the
configs under `configs/` and of nets on the meta device, or (differences of accuracies) out of the
paper's own tables. What is shown as ours is always computed. Where it is not what is printed, the
data files have what it was (`ours`), only to notice that a net has changed.
"""
