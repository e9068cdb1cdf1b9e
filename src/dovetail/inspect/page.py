def render_page(e): return ""
