"""Levers: what can be decided about a run so that it needs less memory or takes less time, and one search over it.

A lever is one decision, such as which DeepSpeed file shards the run or how many samples a micro batch has. options has
the options of each lever on both sides of the run, search tries them. Advice, plans and the rules on wasted time ask
the same options, so that they do not contradict each other. The room knows no rule: whoever searches says what is
accepted."""
