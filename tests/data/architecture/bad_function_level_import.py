# module: dovetail.passes.bad_function_level_import
# expect: function-level-import
def rewrite() -> object:
    from dovetail.analysis import alias

    return alias
