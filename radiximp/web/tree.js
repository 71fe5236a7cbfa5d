// The icicle on a canvas: width is tokens, a row down is what continues a node. Draws what is at least a pixel wide.

import { COLOURS, PINNED, GOES_FIRST, IN_USE, Rows } from "./rows.js";
import { short } from "./dom.js";

const ROW = 24, LEAST = 1.5, MOST_DEPTH = 300;

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function isLight(colour) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return 0.299 * r + 0.587 * g + 0.114 * b > 130;
}

export class TreeView {
  /** onSelect(id), onZoom(rows from the top to the one that fills the width). */
  constructor(canvas, { onSelect, onZoom }) {
    Object.assign(this, { canvas, onSelect, onZoom });
    this.rows = null;
    this.cells = []; // [row (-1: many small ones), x, width, depth] as drawn
    this.selected = this.zoomed = null; // ids
    this.colour = "importance";
    this.filter = { name: "all", least: 0 };
    this.count = 0;
    this.isDue = false;
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    canvas.addEventListener("click", (event) => this.pick(event, (row) => this.select(row)));
    canvas.addEventListener("dblclick", (event) => this.pick(event, (row) => this.zoom(row)));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  show(tree) {
    this.rows = new Rows(tree);
    this.draw();
    this.onZoom(this.rows.path(this.zoomRow));
  }

  get zoomRow() {
    return this.rows.rowOf.get(this.zoomed) ?? -1;
  }

  get row() {
    return this.rows?.rowOf.get(this.selected) ?? -1;
  }

  /** Once a frame, however often it is asked for. */
  draw() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => {
      this.isDue = false;
      if (this.rows) this.paint();
    });
  }

  layout(width) {
    const { rows } = this, { subtree_tokens: tokens } = rows.columns, top = this.zoomRow;
    const scale = width / Math.max(rows.total(top), 1);
    const cells = [], waiting = top < 0 ? [[-1, 0, -1]] : [[top, 0, 0]];
    if (top >= 0) cells.push([top, 0, width, 0]);
    while (waiting.length) {
      const [row, left, depth] = waiting.pop();
      let x = left;
      const small = rows.leftOut(row) * scale;
      if (depth + 1 >= MOST_DEPTH) continue;
      let rest = small;
      for (const child of rows.below(row)) {
        const wide = tokens[child] * scale;
        if (wide < LEAST) {
          rest += wide; // they come in order of width, so all that follow are small too
          continue;
        }
        cells.push([child, x, wide, depth + 1]);
        waiting.push([child, x, depth + 1]);
        x += wide;
      }
      if (rest >= LEAST) cells.push([-1, x, rest, depth + 1]);
    }
    return cells;
  }

  paint() {
    const { canvas, rows } = this, ratio = devicePixelRatio || 1;
    const width = canvas.clientWidth || canvas.parentElement.clientWidth;
    const cells = (this.cells = this.layout(width));
    const depth = cells.reduce((most, cell) => Math.max(most, cell[3]), 0);
    const height = ROW * Math.max(depth + 1, 6);
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    const { found, count } = rows.matches(this.filter.name, this.filter.least);
    this.count = count;
    const shades = { line: css("--cell-line"), hidden: css("--hidden"), text: css("--text"), warn: css("--warn") };
    for (const cell of cells) this.paintCell(context, cell, found, shades);
    this.outline(context, this.rows.tree.next_victim, shades.warn, [4, 3]);
    this.outline(context, this.selected, shades.text, []);
  }

  paintCell(context, [row, x, width, depth], found, shades) {
    const { columns } = this.rows, y = depth * ROW, gap = width > 4 ? 1 : 0;
    if (row < 0) {
      context.fillStyle = shades.hidden;
      context.fillRect(x, y + ROW / 2, width, ROW / 2 - 1);
      return;
    }
    const colour = COLOURS[this.colour].of(columns, row), isMatch = found[row] === 1;
    context.globalAlpha = isMatch ? 1 : 0.15;
    context.fillStyle = colour;
    context.fillRect(x, y, width - gap, ROW - 1);
    const flags = columns.flags[row], ink = isLight(colour) ? "#10151a" : "#ffffff";
    context.fillStyle = ink;
    if (flags & PINNED) context.fillRect(x, y, width - gap, 3);
    if (flags & IN_USE) context.fillRect(x, y + ROW - 4, width - gap, 3);
    const marks = (flags & PINNED ? "⚑" : "") + (flags & GOES_FIRST ? "↓" : "");
    const text = marks + short(columns.tokens[row]);
    if (width > 14 + 7 * text.length) {
      if (!isMatch) context.fillStyle = shades.text;
      context.fillText(text, x + 5, y + ROW / 2);
    }
    context.globalAlpha = 1;
  }

  outline(context, id, colour, dashes) {
    const row = this.rows.rowOf.get(id);
    const cell = row === undefined ? undefined : this.cells.find((drawn) => drawn[0] === row);
    if (!cell) return;
    const [, x, width, depth] = cell;
    context.strokeStyle = colour;
    context.lineWidth = 2.5;
    context.setLineDash(dashes);
    context.strokeRect(x + 1, depth * ROW + 1, Math.max(width - 3, 1), ROW - 3);
    context.setLineDash([]);
  }

  pick(event, use) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, depth = Math.floor((event.clientY - box.top) / ROW);
    // A finger is wider than a thin node: the nearest within some pixels.
    let best = null, nearest = 8;
    for (const cell of this.cells) {
      if (cell[3] !== depth || cell[0] < 0) continue;
      const away = Math.max(cell[1] - x, x - cell[1] - cell[2], 0);
      if (away < nearest) [best, nearest] = [cell, away];
    }
    if (best) use(best[0]);
  }

  select(row) {
    if (row === undefined || row < 0) return;
    this.onSelect(this.rows.columns.id[row]);
  }

  /** Zoom so that the selected row is wide enough to be drawn, if it is not. */
  reveal() {
    const { row } = this;
    if (row >= 0 && !this.cells.some((cell) => cell[0] === row)) this.zoom(this.rows.columns.parent[row]);
  }

  /** Let a row fill the width; -1: the whole tree. */
  zoom(row) {
    this.zoomed = row < 0 ? null : this.rows.columns.id[row];
    this.draw();
    this.onZoom(this.rows.path(row));
  }

  key(event) {
    if (!this.rows?.length || event.altKey || event.ctrlKey || event.metaKey) return;
    const { rows, row } = this, { parent } = rows.columns;
    const siblings = row < 0 ? rows.below(-1) : rows.below(parent[row]);
    const beside = (by) => siblings[Math.max(0, Math.min(siblings.length - 1, siblings.indexOf(row) + by))];
    const moves = {
      ArrowLeft: () => this.select(beside(-1)),
      ArrowRight: () => this.select(row < 0 ? siblings[0] : beside(1)),
      ArrowDown: () => this.select(row < 0 ? siblings[0] : rows.below(row)[0]),
      ArrowUp: () => row >= 0 && this.select(parent[row]),
      Home: () => this.select(rows.below(-1)[0]),
      Enter: () => row >= 0 && this.zoom(row),
      Escape: () => this.zoomRow >= 0 && this.zoom(parent[this.zoomRow]),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    moves[event.key]();
  }
}
