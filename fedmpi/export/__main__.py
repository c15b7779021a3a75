"""python -m fedmpi.export RUN --tier 0.25 | --client 17 [--round best|last|N] [--format pt2|safetensors|onnx]

Writes one trained net of a run as a file that needs no fedmpi: BatchNorm statistics inside, any batch size. Prints how
to load it and to prepare its inputs, its accuracy, size, latency on one thread and bytes of memory.

Packages: pip install 'fedmpi[export]' (onnx, onnxscript, onnxruntime).
"""

import sys
from collections.abc import Sequence

from fedmpi.command.manners import Parser, run_command


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 1 where the check fails, 2 for a user's mistake."""
    from fedmpi.export.command import export  # loads torch

    parser = Parser("fedmpi export", __doc__)
    add = parser.add_argument
    add("run", metavar="RUN", help="the run's folder")
    where = "where its data are now (data.root=...), its own code (model.name=mynets:Net)"
    add("overrides", nargs="*", default=[], metavar="section.key=value", help=where)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--tier", help="the net of this name in the records; needed where there are several")
    which.add_argument("--client", type=int, metavar="N", help="the net that this client is tested with")
    best = "best (highest mean accuracy of the saved rounds), last (the default), or a number"
    add("--round", default="last", metavar="best|last|N", help=best)
    needs = "pt2 needs torch alone, safetensors the net's code, too, onnx ONNX Runtime alone"
    add("--format", choices=["pt2", "safetensors", "onnx"], help=f"{needs}; by default the ending of --out, else pt2")
    add("--dense", action="store_true", help="multiply the two layers out that stand for a factorized one")
    add("--cut", action="store_true", help="leave out what a client of hermes has pruned, and print the costs of both")
    add("--out", metavar="FILE", help="by default RUN's name, net and round in this folder")
    checked = "test the file on the whole test set, against the printed accuracy; exit code 1 if that fails"
    add("--check", action="store_true", help=checked)
    return run_command(lambda: export(parser.parse_intermixed_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
