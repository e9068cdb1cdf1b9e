  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const MARGIN = {left: 78, right: 12, top: 16, bottom: 22};
  const number = (value) => value.toLocaleString("en-US");
  const text = (tag, content, parent, style) => {
    const element = document.createElement(tag);
    element.textContent = content;
    if (style) element.className = style;
    parent.append(element);
    return element;
  };
  const amount = (count) => {
    // In the unit of the page.
    const {name, size} = data.unit, scaled = count / size;
    if (size === 1) return `${number(count)} ${name}`;
    if (count && scaled < 0.05) return `<0.1 ${name}`;
    return `${count ? scaled.toLocaleString("en-US", {minimumFractionDigits: 1, maximumFractionDigits: 1}) : "0"} ${name}`;
  };
  const placeTip = (x, y) => {
    tip.hidden = false;
    const left = Math.min(x + 14, window.innerWidth - tip.offsetWidth - 8);
    const below = y + 18 + tip.offsetHeight < window.innerHeight;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${Math.max(8, below ? y + 18 : y - 12 - tip.offsetHeight)}px`;
  };
  // Widths are set here: the page allows no style attributes.
  const measured = (root) => {
    for (const cell of root.querySelectorAll("[data-part]")) cell.style.setProperty("--part", `${cell.dataset.part}%`);
    for (const chunk of root.querySelectorAll("[data-rows]")) chunk.style.setProperty("--rows", chunk.dataset.rows);
  };
  measured(document);

  // --- memory maps -----------------------------------------------------------------------------------------------
  // What lives longest lies lowest: then hardly anything moves when something above it is freed.

  class MemoryMap {
    constructor(place, facts) {
      this.box = document.getElementById(`map-${place}`);
      this.canvas = this.box.querySelector("canvas");
      this.readout = this.box.querySelector(".readout");
      this.facts = facts;
      this.storages = facts.storages.map(([storage, name, operator, meta, size, first, last, kind, where, line], at) =>
        ({storage, name, operator, meta, size, first, last, kind, where, line, at}));
      this.storages.sort((a, b) => (b.last - b.first) - (a.last - a.first) || a.first - b.first || a.at - b.at);
      this.storages.forEach((storage, rank) => { storage.rank = rank; });
      this.node = -1;
      this.held = null;
      this.canvas.addEventListener("mousemove", (event) => this.point(event));
      this.canvas.addEventListener("mouseleave", () => this.leave());
      this.canvas.addEventListener("keydown", (event) => this.press(event));
    }
    get count() { return this.facts.nodes.length; }
    draw() {
      // The layers are painted once for a size and a colour scheme; pointing at them paints over a copy.
      const {canvas, facts} = this;
      const width = canvas.clientWidth, height = canvas.clientHeight, ratio = window.devicePixelRatio || 1;
      if (!width) return;
      canvas.width = width * ratio;
      canvas.height = height * ratio;
      const css = getComputedStyle(document.documentElement);
      const color = (name) => css.getPropertyValue(`--${name}`).trim();
      const key = [width, height, ratio, color("ground")].join();
      if (this.key !== key) {
        const plot = this.plot = {x: MARGIN.left, y: MARGIN.top, width: width - MARGIN.left - MARGIN.right,
          height: height - MARGIN.top - MARGIN.bottom, most: Math.max(1, facts.peak)};
        Object.assign(canvas.dataset, {x: plot.x, y: plot.y, width: plot.width, height: plot.height, most: plot.most, drawn: "yes"});
        this.key = key;
        this.columns = this.layColumns(plot.width);
        this.layers = document.createElement("canvas");
        this.layers.width = canvas.width;
        this.layers.height = canvas.height;
        const pen = this.layers.getContext("2d");
        pen.scale(ratio, ratio);
        this.axes(pen, plot, color);
        this.paint(pen, plot, color);
      }
      const pen = canvas.getContext("2d");
      pen.drawImage(this.layers, 0, 0);
      pen.scale(ratio, ratio);
      if (this.held) this.raise(pen, color);
      this.marks(pen, this.plot, color);
    }
    paint(pen, plot, color) {
      const heights = plot.height / plot.most, ground = color("panel");
      const paints = data.categories.map(([, style]) => color(style));
      const begun = [...this.storages].sort((a, b) => a.first - b.first);
      let next = 0, alive = [];
      for (const [from, to, node] of this.columns) {
        const x = Math.round(plot.x + from), w = Math.round(plot.x + to) - x;
        alive = alive.filter((storage) => storage.last >= node);
        const count = alive.length;
        for (; next < begun.length && begun[next].first <= node; next += 1) if (begun[next].last >= node) alive.push(begun[next]);
        if (alive.length > count) alive.sort((a, b) => a.rank - b.rank);
        let base = plot.y + plot.height, thin = 0, kind = -1;
        const flush = () => {  // what is thinner than a pixel is painted together with its neighbours
          if (!thin) return;
          pen.globalAlpha = 0.86;
          pen.fillStyle = paints[kind];
          pen.fillRect(x, base - thin, w, thin);
          base -= thin;
          thin = 0;
        };
        for (const storage of alive) {
          const h = storage.size * heights;
          if (thin && (kind !== storage.kind || thin >= 2 || h >= 1)) flush();
          if (h < 1) { thin += h; kind = storage.kind; continue; }
          pen.globalAlpha = 0.72 + 0.14 * (storage.at % 3);
          pen.fillStyle = paints[storage.kind];
          pen.fillRect(x, base - h, w, h);
          if (h > 3) { pen.globalAlpha = 1; pen.fillStyle = ground; pen.fillRect(x, base - h, w, 0.6); }
          base -= h;
        }
        flush();
      }
      pen.globalAlpha = 1;
    }
    raise(pen, color) {
      // The storage that is pointed at, all along its life.
      const {plot, held} = this, heights = plot.height / plot.most;
      pen.fillStyle = color("ink");
      pen.globalAlpha = 0.5;
      for (const [from, to, node] of this.columns) {
        if (node < held.first || node > held.last) continue;
        let below = 0;
        for (const storage of this.storages) {
          if (storage === held) break;
          if (storage.first <= node && node <= storage.last) below += storage.size;
        }
        const x = Math.round(plot.x + from), w = Math.round(plot.x + to) - x, h = Math.max(1, held.size * heights);
        pen.fillRect(x, plot.y + plot.height - below * heights - h, w, h);
      }
      pen.globalAlpha = 1;
    }
    layColumns(width) {
      // One column for each node, or for each pixel the highest of the nodes that fall on it.
      const count = this.count, columns = [];
      if (count <= width) {
        for (let node = 0; node < count; node += 1) columns.push([node * width / count, (node + 1) * width / count, node]);
        return columns;
      }
      for (let x = 0; x < width; x += 1) {
        const from = Math.floor(x * count / width), to = Math.max(from + 1, Math.floor((x + 1) * count / width));
        let best = from;
        for (let node = from; node < to; node += 1) if (this.facts.live[node] > this.facts.live[best]) best = node;
        columns.push([x, x + 1, best]);
      }
      return columns;
    }
    alive(node) { return this.storages.filter((storage) => storage.first <= node && node <= storage.last); }
    axes(pen, plot, color) {
      pen.font = "11px system-ui, sans-serif";
      pen.textBaseline = "middle";
      const step = this.tick(plot.most);
      for (let level = 0; level <= plot.most; level += step) {
        const y = plot.y + plot.height * (1 - level / plot.most);
        pen.fillStyle = color("edge");
        pen.fillRect(plot.x, y, plot.width, 1);
        pen.fillStyle = color("quiet");
        pen.textAlign = "right";
        pen.fillText(amount(level), plot.x - 8, y);
      }
    }
    tick(most) {
      let step = 1;
      for (let turn = 0; most / step > 5; turn += 1) step *= turn % 3 === 1 ? 2.5 : 2;
      return step;
    }
    marks(pen, plot, color) {
      const count = Math.max(1, this.count);
      const at = (node) => plot.x + (node + 0.5) * plot.width / count;
      pen.textBaseline = "alphabetic";
      pen.fillStyle = color("quiet");
      pen.textAlign = "left";
      pen.fillText("node 0", plot.x, plot.y + plot.height + 15);
      pen.textAlign = "right";
      pen.fillText(number(this.count - 1), plot.x + plot.width, plot.y + plot.height + 15);
      const split = this.facts.backwardFrom;
      if (split > 0 && split < this.count) {
        const x = plot.x + split * plot.width / count;
        pen.fillStyle = color("ink");
        pen.fillRect(x - 0.5, plot.y, 1, plot.height);
        pen.textAlign = "center";
        pen.fillText("backward from here", x, plot.y + plot.height + 15);
      }
      if (this.facts.peakNode >= 0) {
        const x = at(this.facts.peakNode), right = x > plot.x + plot.width * 0.75;
        pen.fillStyle = color("ink");
        pen.beginPath();
        pen.moveTo(x - 4, plot.y - 7); pen.lineTo(x + 4, plot.y - 7); pen.lineTo(x, plot.y); pen.fill();
        pen.textAlign = right ? "right" : "left";
        pen.fillText(`peak ${amount(this.facts.peak)}`, x + (right ? -8 : 8), plot.y - 4);
      }
      if (this.node >= 0) {
        pen.fillStyle = color("ink");
        pen.globalAlpha = 0.6;
        pen.fillRect(at(this.node) - 0.5, plot.y, 1, plot.height);
        pen.globalAlpha = 1;
      }
    }
    find(x, y) {
      const {plot} = this, inside = x - plot.x;
      if (inside < 0 || inside >= plot.width || !this.count) return [-1, null];
      const column = this.columns[Math.min(this.columns.length - 1, Math.floor(inside * this.columns.length / plot.width))];
      let level = (plot.y + plot.height - y) * plot.most / plot.height;
      if (level < 0) return [column[2], null];
      for (const storage of this.alive(column[2])) {
        if (level < storage.size) return [column[2], storage];
        level -= storage.size;
      }
      return [column[2], null];
    }
    point(event) {
      if (!this.plot) return;
      const box = this.canvas.getBoundingClientRect();
      const [node, storage] = this.find(event.clientX - box.left - this.canvas.clientLeft, event.clientY - box.top - this.canvas.clientTop);
      this.show(node, storage);
      if (!storage) { tip.hidden = true; return; }
      tip.replaceChildren();
      tip.dataset.storage = storage.storage;
      text("b", `${storage.name}: ${amount(storage.size)}`, tip);
      text("span", `storage ${storage.storage}, ${storage.meta}, ${data.categories[storage.kind][0]}; alive from node ${storage.first} to ${storage.last}`, tip);
      text("code", storage.operator, tip);
      if (storage.where) text("span", storage.where, tip);
      if (storage.line) text("code", storage.line, tip);
      placeTip(event.clientX, event.clientY);
    }
    show(node, storage) {
      if (node === this.node && storage === this.held) return;
      this.node = node;
      this.held = storage;
      this.readout.textContent = node < 0 ? "" : `node ${node}   ${amount(this.facts.live[node])} live   ${this.facts.nodes[node]}`;
      if (!this.pending) this.pending = requestAnimationFrame(() => { this.pending = 0; this.draw(); });
    }
    leave() { tip.hidden = true; this.show(-1, null); }
    press(event) {
      const move = {ArrowRight: 1, ArrowLeft: -1, PageDown: 50, PageUp: -50}[event.key];
      if (move === undefined) return;
      event.preventDefault();
      this.show(Math.max(0, Math.min(this.count - 1, (this.node < 0 ? this.facts.peakNode - move : this.node) + move)), null);
    }
  }

  const maps = data.maps.map((facts, place) => new MemoryMap(place, facts));
  const drawAll = () => maps.forEach((map) => map.draw());
  for (const button of document.querySelectorAll("[data-map]")) {
    button.addEventListener("click", () => {
      for (const other of document.querySelectorAll("[data-map]")) other.setAttribute("aria-selected", other === button);
      maps.forEach((map, place) => { map.box.hidden = place !== Number(button.dataset.map); map.draw(); });
    });
  }
  window.addEventListener("resize", drawAll);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  drawAll();

  // --- filters ---------------------------------------------------------------------------------------------------
  // Words are all to be found; `op:`, `name:`, `module:`, `line:` look in one column, `storage:` for one number.

  const fits = (row, word) => {
    const [, key, rest] = /^(op|name|module|storage|line):(.+)$/.exec(word) || [];
    if (key === "storage") return row.dataset.storage.split(" ").includes(rest);
    if (key === "line") return row.lastElementChild.textContent.toLowerCase().includes(rest);
    if (key) return row.dataset[key].includes(rest);
    return row.dataset.op.includes(word) || row.dataset.name.includes(word) || row.dataset.module.includes(word)
      || row.lastElementChild.textContent.toLowerCase().includes(word);
  };
  for (const section of document.querySelectorAll(".program")) {
    const chunks = [...section.querySelectorAll(".chunk")].map((table) => ({table, rows: [...table.querySelectorAll("tr")]}));
    const total = chunks.reduce((sum, chunk) => sum + chunk.rows.length, 0), count = section.querySelector(".count");
    const input = section.querySelector("input");
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const chunk of chunks) {
        let here = 0;
        for (const row of chunk.rows) {
          row.hidden = !words.every((word) => fits(row, word));
          if (!row.hidden) here += 1;
        }
        chunk.table.hidden = !here;
        chunk.table.style.setProperty("--rows", here);
        shown += here;
      }
      count.textContent = `${number(shown)} of ${number(total)}`;
    });
  }

  // --- differences -----------------------------------------------------------------------------------------------

  for (const details of document.querySelectorAll(".diff")) {
    details.addEventListener("toggle", () => {
      const pre = details.querySelector("pre");
      if (pre.childElementCount) return;
      const lines = document.createDocumentFragment();
      for (const line of data.diffs[details.dataset.step].split("\n")) {
        text("span", line, lines, {"+": "added", "-": "removed", "@": "place"}[line[0]]);
      }
      pre.append(lines);
    });
  }
