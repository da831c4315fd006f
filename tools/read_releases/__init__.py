"""Generated tables of LLaMA-Factory, transformers and DeepSpeed, read from released packages by `ast` alone.

`python -m tools.read_releases` downloads the releases named in `releases.py` into a temporary folder and writes the
tables below into `validator/data/`; `--check` writes nothing and fails if a table differs. Both take the rows of
model_classes.json as they are; `--anew` reads all of its releases again (half a gigabyte).

arguments.json
    releases   {release of LLaMA-Factory: {"transformers": [releases]}}, newest first in both directions. A pair of
               releases is written with a slash, LLaMA-Factory's first.
    arguments  {name: entry}. An entry describes the key in the newest pair that accepts it:
               type      union of bool, int, float, str, list, dict and object (nothing YAML can write), as "dict|str"
               optional  whether null is a value
               default   as written in the dataclass; absent when the key must be given
               choices   list of accepted texts, or null
               items     (some) texts allowed as words or list members: fsdp, debug
               group     model, data, training, finetuning, generating
               command   (some) the key is accepted by train but only read by "export" or "chat" (chat, webchat, api)
               in        (some) the pairs that accept the key; absent when all do
    changes    {pair: {name: {field: value}}}: fields of an entry that differ in an older pair
    elsewhere  {name: command}: keys that train refuses because they belong to "eval" or to "v1" (USE_V1=1)

templates.json
    source     {"llamafactory": release}
    templates  {name: facts}, a fact that is false or empty left out: reasoning (adds an empty thought to answers
               without one), efficient_eos (refuses train_on_prompt), replace_eos (changes the tokenizer: end token),
               plugin (multimodal), media (image, video, audio: the model must have a processor), tool_format
    models     {template: {kind: [hub and ModelScope names]}}; the template is that of the registered group, "" for
               none. LLaMA-Factory takes it as default for the kinds chat and multimodal, not for base
    names      names LLaMA-Factory knows: tool_formats, file_types (suffix: reader)
    in         {template: [releases of LLaMA-Factory that register it]}; absent when all of arguments.json do

registry.json, for docs/reference/models.md
    groups     {first name of a group that LLaMA-Factory registers: [hub and ModelScope names of all its models]}

families.json, for the model types of families.yaml; validator/knowledge/families.py says what each column means
    source        {"llamafactory": release, "transformers": release}
    llamafactory  {column: [model types]}, also of types that families.yaml does not have
    transformers  {model type: facts of its decoder layer}, a fact that is false or empty left out; no entry where
                  transformers has no class for the type. fused_experts is the first release that fuses them,
                  grouped_experts the first that runs them in grouped matmuls
    modules       {class of torch: [types of composites.yaml whose class in transformers makes such a module]}

model_classes.json, of all model types, from more releases of transformers than the other tables
    source       {"transformers": [releases]}, oldest first
    loaders      {release of LLaMA-Factory: [Auto classes]} that it loads models by, in the order in which it tries them
    nested       {"types": [model types]} whose configuration looks the type of its text model up among all types
    AutoConfig   {release: [model types]} that came with it: in the first release, all that it has. The first that was
                 read of a minor version stands for the whole of it. Likewise a section for each Auto class
    removed      {release: {Auto class: [model types]}} that the release has no more

deepspeed.json
    source     {"deepspeed": release}
    keys       {top-level key: facts}: type (absent: not judged) and default. DeepSpeed ignores any other key
    blocks     {dotted path: {"unknown": "error" or "ignored", "fields": {name: facts}}}: what a key that is not listed
               does in this block. Facts: type, optional (null allowed), default, choices, minimum, maximum, alias
               (a second spelling), deprecated. A field that is itself a block is of type dict. In an "error" block
               "auto" is dropped before anything is judged, and pydantic is lenient (tried with this release): an int
               takes 5e8 and "5", not 5.5 or "5e8"; a bool takes 0, 1, 1.0, "true" and "yes"; null only where optional
    schedulers {type: [parameters besides the optimizer]}
    needed     {scheduler type: [those of its parameters without a default]}, where it has any
    since      {dotted path of a key in a strict block: first release that takes it}, of those that came after 0.14.0
    names      {"optimizers": [lower-case types DeepSpeed builds itself]}; any other name is taken from torch.optim

values.json is measured, not generated: benchmarks/conformity/values.py runs LLaMA-Factory with wrong values.
    source     {package: release} the outcomes hold for
    kinds      kinds of value in the order of the letters below. quoted is the right value as text, whole an integer
               written as float; text is any word (for a key with choices: one that is none of them)
    outcomes   {name: letters}: "-" fits the type; "." runs; p fails at parse; d m t s e v fail in the data, while the
               model loads, while the trainer is built, at a step, at an evaluation, at a save; h does not end;
               r passes the parser and was not run further (text for a number cannot do better than quoted, which was);
               "?" not known, the right value fails on that machine too
"""
