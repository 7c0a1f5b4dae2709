"""Devices: one file each, found by name through `tinygrad.device.Device`."""
