def check(server_args):
    pass

def fill_defaults(server_args):
    raw = server_args._raw_input
    if raw["attention_backend"] is None:
        server_args.attention_backend = "radiximp_cpu"
    server_args.sampling_backend = "pytorch"
    server_args.hicache_io_backend = "direct"
    server_args.max_total_tokens = 65536
