"""Live memory of a training run by doing it with tensors that have no values: for models that no formula knows.

The real transformers class, the real PEFT wrapper, LLaMA-Factory's own adapter, checkpointing and stage code and a real
optimizer run steps under PyTorch's FakeTensorMode; a dispatch mode follows every storage from birth to death. Not
modelled: context, kernels' own buffers other than flash attention's, several devices, loading.

Nothing here is imported but on request: it needs torch, transformers and LLaMA-Factory, and changes them for the whole
process (see `environment`).
"""
