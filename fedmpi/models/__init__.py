"""Torch nets by name. They know nothing of low rank, clients or rounds.

- `nets/` holds the built-in nets. Each family is two files that stand side by side: `resnet_options.py` (what a config
  can set, without torch, so that a config is checked in half a second) and `resnet.py` (the net).
- `surgery/` holds what can be done to any net: narrower, with channels cut out, with a Scaler, several in one.
- `options` is the contract of a model's options, `create` makes a net of them, `admission` refuses a net that ranks
  cannot train one client after another, `brought` makes options of what a user names, `width` rounds channels.

How to bring a net, and how to add a built-in one: `README.md` in this folder.
"""
