"""Live memory of a training run, found by doing a step with tensors that have no values: for models that no formula
knows.

The package has two halves that must not mix. simulation_request, simulated_memory, session and predict need no torch
and run in the calling process. All other modules import torch, transformers and LLaMA-Factory, and run in a child
process. There the real transformers class, PEFT wrapper, LLaMA-Factory code and optimizer run under PyTorch's
FakeTensorMode. A dispatch mode follows every storage, and libraries are patched for the whole process. Not modelled:
the CUDA context, buffers of kernels other than flash attention's, several devices, and loading."""
