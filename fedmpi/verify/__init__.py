"""`python -m fedmpi.verify`: what the papers print of sizes, compute and bytes, against nets that are built.

Every printed number that follows from the nets alone is a claim: the facts of the papers' data files, the cells of
their computed tables, and the sizes in the row labels of the others. A module per paper (`paper_fedhm`, ...) computes
ours out of the configs under `configs/` and of nets on the meta device, or (differences of accuracies) out of the
paper's own tables. Where ours is not what is printed, the data files have what it was, to notice a changed net.
"""
