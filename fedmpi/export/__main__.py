"""python -m fedmpi.export RUN --tier 0.25 | --client 17 [--round best|last|N] [--format pt2|safetensors|onnx]

Writes one trained net of a run as a file that needs no fedmpi: BatchNorm statistics inside, any batch size. Prints how
to load it and to prepare its inputs, its accuracy, size, latency on one thread and bytes of memory.

  RUN [section.key=value ...]  the run's folder; where its data are now
                     (data.root=...), its own code (model.name=mynets:Net)
  --tier NAME        the net of this name in the records; needed where there are
                     several
  --client N         the net that client N is tested with, where clients have
                     their own
  --round R          best (highest mean accuracy of the saved rounds), last (the
                     default), or a number
  --format F         pt2 (needs torch alone), safetensors (the values alone: needs
                     the net's code, too), onnx (needs ONNX Runtime alone); by
                     default the ending of --out, else pt2
  --dense            multiplies the two layers out that stand for a factorized one
  --cut              leaves out the rows and columns that a client of hermes has
                     pruned, and prints the costs of both
  --out FILE         by default RUN's name, net and round in this folder
  --check            tests the file on the whole test set, against the printed
                     accuracy; exit code 1 if that fails

Packages: pip install 'fedmpi[export]' (safetensors; onnx, onnxscript, onnxruntime).
"""

import sys
from collections.abc import Sequence

from fedmpi.command.manners import Parser, run_command


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 1 where the check fails, 2 for a user's mistake."""
    from fedmpi.export.command import export  # loads torch

    parser = Parser("fedmpi export", __doc__)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("overrides", nargs="*", default=[], metavar="section.key=value")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--tier")
    which.add_argument("--client", type=int)
    parser.add_argument("--round", default="last", metavar="best|last|N")
    parser.add_argument("--format", choices=["pt2", "safetensors", "onnx"])
    parser.add_argument("--dense", action="store_true")
    parser.add_argument("--cut", action="store_true")
    parser.add_argument("--out", metavar="FILE")
    parser.add_argument("--check", action="store_true")
    return run_command(lambda: export(parser.parse_intermixed_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
