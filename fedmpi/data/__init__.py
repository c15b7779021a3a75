"""Data sets, how they are divided among clients, and batches of them on a device.

torchvision's readers do not serve here: of idx files they read no packed ones, of none they name the damaged file, and
loading torchvision takes longer than reading digits. The tests compare CIFAR with them.
"""
