"""A node that synchronizes a model of as many values as its argument says, and prints what it is
told."""

from __future__ import annotations

import json
import sys

import torch

import slowmo


def main() -> None:
    worker = slowmo.Runtime().worker()
    try:
        there = worker.synchronize([("weight", torch.zeros(int(sys.argv[1])))])
        print(json.dumps({"nodes": there.nodes}), flush=True)
        worker.leave()
    except slowmo.SynchronizeError as error:
        print(json.dumps({"kind": error.kind, "error": str(error)}), flush=True)


if __name__ == "__main__":
    main()
