"""Data sets, how they are divided among clients, and batches of them on a device.

`dataset` says what a data set is, `files` fetches, unpacks and decodes, `own` takes the user's arrays,
functions and partitions, `partition` divides, `personal` chooses test examples of a client, `subset` has the choices by
class, `batches` and `lending` hold examples on a device and once a node, `command` is `fedmpi data`.

torchvision's readers do not serve here: of idx files they read no packed ones, of none they name the damaged file, and
loading torchvision takes longer than reading digits. The tests compare CIFAR with them.
"""
