"""`Device`, at the name that older scripts import it from."""
from tinygrad.device import Device as Device
