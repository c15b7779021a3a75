"""Torch nets by name. They know nothing of low rank, clients or rounds.

- `nets/` holds the nets, each with its options; `options` has what these have in common.
- `surgery/` holds what can be done to any net: narrower, with channels cut out, with a Scaler, several in one.
- `create` makes a net of its options and refuses one that ranks cannot train one client after another.
- `user_nets` makes options of what a user names, `width` rounds channels.
- `trial` passes the data's first examples through a net before anybody trains it.

How to bring a net, and how to add a built-in one: `README.md` in this folder.
"""
