def scaled(x, factor):
    return x * factor


def shifted(x):
    return x + 1
