
  // --- who holds it ----------------------------------------------------------------------------------------------
  // A tree map. Rectangles as square as they get: Bruls, Huizing, van Wijk, "Squarified Treemaps" (2000).

  const squarify = (sizes, width, height) => {
    // Rectangles [x, y, width, height] for sizes in descending order, in a box of these measures.
    const sum = sizes.reduce((a, b) => a + b, 0), scale = sum ? width * height / sum : 0, found = [];
    let x = 0, y = 0, at = 0;
    const worst = (areas, side) => {
      const whole = areas.reduce((a, b) => a + b, 0);
      return Math.max(...areas.map((area) => Math.max(side * side * area / (whole * whole), whole * whole / (side * side * area))));
    };
    while (at < sizes.length) {
      const side = Math.min(width - x, height - y), row = [Math.max(sizes[at] * scale, 1e-9)];
      let best = worst(row, side);
      while (at + row.length < sizes.length) {
        const next = [...row, Math.max(sizes[at + row.length] * scale, 1e-9)], ratio = worst(next, side);
        if (ratio > best) break;
        row.push(next[next.length - 1]);
        best = ratio;
      }
      const whole = row.reduce((a, b) => a + b, 0), isTall = height - y < width - x, depth = side ? whole / side : 0;
      let along = 0;
      for (const area of row) {
        const length = depth ? area / depth : 0;
        found.push(isTall ? [x, y + along, depth, length] : [x + along, y, length, depth]);
        along += length;
      }
      if (isTall) x += depth; else y += depth;
      at += row.length;
    }
    return found;
  };

  const MOST_TILES = 40, FEW_TILES = 24, LARGE = 0.3, SHOWN = 8;
  const facts = data.holders;

  const share = (part) => `${(100 * part / (facts.total || 1)).toFixed(1)} %`;

  const leaf = (index) => {
    const [name, bytes, category, meta, operator, line, source, module] = facts.holders[index];
    return {label: name, size: bytes, count: 1, parts: [], sums: new Map([[category, bytes]]), meta, operator, line, source, module, isLeaf: true};
  };
  const names = new Intl.Collator("en", {numeric: true});
  const order = (a, b) => b.size - a.size || names.compare(a.label, b.label);
  const branch = ([label, bytes, children, indices]) => {
    const parts = [...children.map(branch), ...indices.map(leaf)].sort(order);
    return gathered(label, bytes, parts);
  };
  const gathered = (label, bytes, parts) => {
    const sums = new Map();
    for (const part of parts) for (const [category, sum] of part.sums) sums.set(category, (sums.get(category) || 0) + sum);
    return {label, size: bytes, count: parts.reduce((sum, part) => sum + part.count, 0), parts, sums, isLeaf: false};
  };

  class Holders {
    constructor(box) {
      this.map = box.querySelector(".treemap");
      this.list = box.querySelector(".parts");
      this.crumbs = box.querySelector(".crumbs");
      this.trees = Object.fromEntries(Object.entries(facts.trees).map(([by, tree]) => [by, branch(tree)]));
      this.tabs = [...box.querySelectorAll("[data-by]")];
      for (const tab of this.tabs) tab.addEventListener("click", () => this.choose(tab.dataset.by));
      this.map.addEventListener("keydown", (event) => this.press(event));
      this.map.addEventListener("pointerleave", () => { tip.hidden = true; });
      new ResizeObserver(() => this.layOut()).observe(this.map);
      this.choose(this.tabs[0].dataset.by);
    }
    choose(by) {
      for (const tab of this.tabs) tab.setAttribute("aria-selected", tab.dataset.by === by);
      this.by = by;
      this.open([this.trees[by]]);
    }
    open(way, focus = false) {
      this.way = way;
      this.isLong = false;
      this.tiles = this.unfolded(way[way.length - 1]);
      this.write(focus);
    }
    unfolded(node) {
      // What is in a branch; a part that is most of it is replaced by what is in that.
      if (node.isLeaf) return [{node, way: []}];
      let tiles = node.parts.map((part) => ({node: part, way: [part], label: part.label}));
      for (;;) {
        const place = tiles.findIndex((tile) => !tile.node.isLeaf && tile.node.size > LARGE * node.size);
        const inside = place < 0 ? [] : tiles[place].node.parts;
        if (place < 0 || tiles.length + inside.length > FEW_TILES) break;
        const {label, way} = tiles[place], dotted = this.by === "module" || this.by === "layer";
        const parts = inside.map((part) => ({node: part, way: [...way, part], label: dotted ? this.short(label, part) : part.label}));
        tiles = [...tiles.slice(0, place), ...parts, ...tiles.slice(place + 1)];
      }
      tiles.sort((a, b) => b.node.size - a.node.size || names.compare(a.label, b.label));
      if (tiles.length > MOST_TILES) {
        const rest = tiles.slice(MOST_TILES - 1).map((tile) => tile.node);
        const sum = rest.reduce((total, part) => total + part.size, 0);
        const others = gathered(`${number(rest.length)} smaller`, sum, rest);
        tiles = [...tiles.slice(0, MOST_TILES - 1), {node: others, way: [others], label: others.label}];
      }
      return tiles;
    }
    short(parent, part) {
      // `transformer.h` and `3` are `h.3`: the number alone says nothing, the whole path is in the crumbs.
      return /^\d/.test(part.label) ? `${parent.split(".").pop()}.${part.label}` : part.label;
    }
    write(focus) {
      this.map.replaceChildren(...this.tiles.map((tile, place) => this.tile(tile, place)));
      this.layOut();
      this.writeCrumbs();
      this.writeList();
      tip.hidden = true;
      if (focus) this.map.firstElementChild?.focus();
    }
    tile(tile, place) {
      const {node} = tile, button = document.createElement("button");
      button.className = "tile";
      button.tabIndex = place ? -1 : 0;
      const label = tile.label || node.label;
      button.setAttribute("aria-label", `${label}: ${amount(node.size)}, ${share(node.size)}`);
      for (const category of node.sums.keys()) text("span", "", button, `cell ${data.categories[category][1]}`);
      const words = text("span", "", button, "words");
      text("b", label, words);
      text("span", amount(node.size), words);
      button.addEventListener("click", () => this.enter(tile));
      const show = (event) => this.tell(node, event, button);
      button.addEventListener("pointermove", show);
      button.addEventListener("focus", show);
      button.addEventListener("blur", () => { tip.hidden = true; });
      return button;
    }
    enter(tile) {
      if (tile.way.length && !(this.way.length > 1 && tile.node.isLeaf && this.way[this.way.length - 1] === tile.node)) {
        this.open([...this.way, ...tile.way], true);
      }
    }
    layOut() {
      const width = this.map.clientWidth, height = this.map.clientHeight;
      if (!width || !height) return;
      const place = (element, [x, y, w, h], outerWidth, outerHeight) => {
        const style = element.style;
        style.left = `${100 * x / outerWidth}%`;
        style.top = `${100 * y / outerHeight}%`;
        style.width = `${100 * w / outerWidth}%`;
        style.height = `${100 * h / outerHeight}%`;
      };
      this.rects = squarify(this.tiles.map((tile) => tile.node.size), width, height);
      this.rects.forEach((rect, at) => {
        const button = this.map.children[at], [, , w, h] = rect;
        place(button, rect, width, height);
        button.classList.toggle("wordless", w < 34 || h < 19);
        button.classList.toggle("short", h < 36);
        const sums = [...this.tiles[at].node.sums].map(([category, sum], cell) => [sum, cell]).sort((a, b) => b[0] - a[0]);
        const cells = button.querySelectorAll(".cell");
        squarify(sums.map(([sum]) => sum), w, h).forEach((inner, rank) => place(cells[sums[rank][1]], inner, w, h));
      });
    }
    writeCrumbs() {
      const whole = this.way[0];
      this.crumbs.replaceChildren();
      this.way.forEach((node, depth) => {
        const label = depth ? node.label : "everything";
        if (depth) text("span", "\u203a", this.crumbs, "quiet").setAttribute("aria-hidden", "true");
        if (depth === this.way.length - 1) {
          text("b", label, this.crumbs).setAttribute("aria-current", "location");
          return;
        }
        text("button", label, this.crumbs, "link").addEventListener("click", () => this.open(this.way.slice(0, depth + 1), true));
      });
      const last = this.way[this.way.length - 1];
      const many = last.isLeaf ? "" : `, ${number(last.count)} tensors`;
      const part = last === whole ? "" : ` (${share(last.size)})`;
      text("span", `${amount(last.size)}${part}${many}`, this.crumbs, "quiet sum");
    }
    writeList() {
      const last = this.way[this.way.length - 1];
      this.list.replaceChildren();
      if (last.isLeaf) {
        const names = ["operator", "tensor", "module", "line", "source"];
        const rows = [last.operator, last.meta, last.module, last.line, last.source];
        rows.forEach((row, at) => { if (row) this.fact(names[at], row); });
        this.fact("what it is", data.categories[[...last.sums.keys()][0]][0]);
        return;
      }
      const most = this.tiles[0]?.node.size || 1;
      for (const tile of this.isLong ? this.tiles : this.tiles.slice(0, SHOWN)) {
        const item = text("button", "", this.list, "part");
        text("code", tile.label || tile.node.label, item);
        const bar = text("span", "", item, "mix");
        for (const [category, sum] of [...tile.node.sums].sort((a, b) => b[1] - a[1])) {
          text("i", "", bar, data.categories[category][1]).style.width = `${100 * sum / most}%`;
        }
        text("span", amount(tile.node.size), item, "number");
        text("span", share(tile.node.size), item, "number quiet");
        item.addEventListener("click", () => this.enter(tile));
      }
      if (!this.isLong && this.tiles.length > SHOWN) {
        const rest = this.tiles.slice(SHOWN).reduce((sum, tile) => sum + tile.node.size, 0);
        const more = text("button", `${this.tiles.length - SHOWN} more, ${amount(rest)}`, this.list, "link more");
        more.addEventListener("click", () => { this.isLong = true; this.writeList(); this.list.children[SHOWN].focus(); });
      }
    }
    fact(name, content) {
      const row = text("p", "", this.list, "fact");
      text("span", name, row, "quiet");
      text("code", content, row);
    }
    tell(node, event, button) {
      tip.replaceChildren();
      text("b", node.label, tip);
      text("span", `${amount(node.size)}, ${share(node.size)}${node.isLeaf ? "" : `, ${number(node.count)} tensors`}`, tip);
      for (const [category, sum] of [...node.sums].sort((a, b) => b[1] - a[1])) {
        const row = text("span", "", tip, "row");
        text("i", "", row, `swatch ${data.categories[category][1]}`);
        text("span", node.isLeaf ? data.categories[category][0] : `${data.categories[category][0]} ${amount(sum)}`, row);
      }
      for (const line of [node.operator && `${node.operator} ${node.meta}`, node.line]) if (line) text("code", line, tip);
      const box = button.getBoundingClientRect();
      placeTip(event.clientX ?? box.left + box.width / 2, event.clientY ?? box.top + box.height / 2);
    }
    press(event) {
      const tiles = [...this.map.children], at = tiles.indexOf(document.activeElement);
      if (event.key === "Escape" || event.key === "Backspace") {
        if (this.way.length > 1) this.open(this.way.slice(0, -1), true);
        event.preventDefault();
        return;
      }
      const to = {Home: 0, End: tiles.length - 1}[event.key] ?? this.neighbour(at, event.key);
      if (to === undefined || to < 0 || !tiles[to]) return;
      event.preventDefault();
      tiles[at].tabIndex = -1;
      tiles[to].tabIndex = 0;
      tiles[to].focus();
    }
    neighbour(at, key) {
      // The nearest tile in a direction.
      const [dx, dy] = {ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1]}[key] || [0, 0];
      if ((!dx && !dy) || at < 0) return undefined;
      const middle = ([x, y, w, h]) => [x + w / 2, y + h / 2];
      const [x, y] = middle(this.rects[at]);
      let best = -1, least = Infinity;
      this.rects.forEach((rect, other) => {
        const [ox, oy] = middle(rect), along = (ox - x) * dx + (oy - y) * dy;
        const across = Math.abs(ox - x) * Math.abs(dy) + Math.abs(oy - y) * Math.abs(dx);
        const [rx, ry, rw, rh] = rect, [tx, ty, tw, th] = this.rects[at];
        const isBeyond = dx > 0 ? rx >= tx + tw - 1 : dx < 0 ? rx + rw <= tx + 1 : dy > 0 ? ry >= ty + th - 1 : ry + rh <= ty + 1;
        if (other === at || !isBeyond) return;
        const distance = along + 2 * across;
        if (distance < least) { least = distance; best = other; }
      });
      return best;
    }
  }
  if (facts.holders.length) new Holders(document.getElementById("holders"));
