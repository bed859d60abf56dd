# All kinds of parameters: defaults that call methods, keywords, splats, blocks, forwarding.

def default = 1

def optional(one, two = default, *rest, key: default, **others, &block) = [one, two, rest, key, others, block&.call]

def forward(...) = optional(...)

def anonymous_block(&) = optional(1, &)

p optional(1), optional(1, 2, 3, key: 4, other: 5) { default }, forward(6, key: 7) { default }, anonymous_block { default }
