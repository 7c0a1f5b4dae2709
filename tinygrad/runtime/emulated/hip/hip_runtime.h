// What rendered HIP kernels include: their words are in hip.h, which comes first.
