"""Recipes that several tests start from."""

# Check finds no error and no warning.
RECIPE = """model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
do_train: true
finetuning_type: lora
lora_target: all
dataset: alpaca_gpt4_en
template: qwen
cutoff_len: 1024
output_dir: saves/x
save_total_limit: 2
bf16: true
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 2.0
lr_scheduler_type: cosine
warmup_steps: 10
"""
# 70 billion parameters in 4 bits, too many for most cards.
FOUR_BITS = """model_name_or_path: deepseek-ai/DeepSeek-R1-Distill-Llama-70B
quantization_bit: 4
stage: sft
do_train: true
finetuning_type: lora
lora_target: all
dataset: alpaca_gpt4_en,alpaca_gpt4_zh
template: deepseekr1
cutoff_len: 2048
dataloader_num_workers: 4
per_device_train_batch_size: 1
gradient_accumulation_steps: 16
bf16: true
"""
