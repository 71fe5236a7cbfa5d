// The snapshot's columns as a tree: who is below whom, who matches, what colour.

export const PINNED = 1, IN_USE = 2, GOES_FIRST = 4, EVICTABLE = 8;
export const DEVICE = 1, HOST = 2;

export const FILTERS = {
  all: () => true,
  device: (columns, row) => (columns.tiers[row] & DEVICE) !== 0,
  host: (columns, row) => columns.tiers[row] === HOST,
  pinned: (columns, row) => (columns.flags[row] & PINNED) !== 0,
  in_use: (columns, row) => (columns.flags[row] & IN_USE) !== 0,
  evictable: (columns, row) => (columns.flags[row] & EVICTABLE) !== 0,
  shared: (columns, row) => columns.queries[row] >= 3,
};

// Dark to light, readable on both grounds (viridis).
const SCALE = ["#482475", "#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26"];
const UNKNOWN = "#8a939c";
const TIERS = { [DEVICE]: "#2a788e", [HOST]: "#c77c11", [DEVICE | HOST]: "#44bf70", 0: UNKNOWN };

const step = (value, low, high) => SCALE[Math.max(0, Math.min(8, Math.round((8 * (value - low)) / (high - low))))];

export const COLOURS = {
  importance: {
    of: (columns, row) => {
      const density = columns.importance[row];
      return density === null ? UNKNOWN : step(Math.log2(Math.max(density, 1e-3)), -3, 3);
    },
    legend: [
      [SCALE[0], "1/8 of the average token's attention"], [SCALE[4], "average"], [SCALE[8], "8 times"], [UNKNOWN, "not observed"],
    ],
  },
  age: {
    of: (columns, row) => step(-Math.log10(Math.max(columns.age_s[row], 1)), -4, 0),
    legend: [[SCALE[8], "used just now"], [SCALE[6], "10 s ago"], [SCALE[4], "2 min"], [SCALE[2], "17 min"], [SCALE[0], "3 h"]],
  },
  tier: {
    of: (columns, row) => TIERS[columns.tiers[row]],
    legend: [[TIERS[DEVICE], "device"], [TIERS[DEVICE | HOST], "device, with a copy on the host"], [TIERS[HOST], "host only"]],
  },
};

export class Rows {
  /** tree: a rank's snapshot. Children are in order of tokens, most first. */
  constructor(tree) {
    this.tree = tree;
    this.columns = tree.columns;
    const { parent, subtree_tokens: tokens, id } = this.columns;
    this.length = id.length;
    this.rowOf = new Map(id.map((number, row) => [number, row]));
    this.children = new Map([[-1, []]]);
    for (let row = 0; row < this.length; row++) {
      const siblings = this.children.get(parent[row]);
      if (siblings) siblings.push(row);
      else this.children.set(parent[row], [row]);
    }
    for (const rows of this.children.values()) rows.sort((a, b) => tokens[b] - tokens[a] || id[a] - id[b]);
  }

  below(row) {
    return this.children.get(row) ?? [];
  }

  /** Tokens below a row that have none of their own. */
  leftOut(row) {
    const { subtree_tokens: all, tokens } = this.columns;
    if (row < 0) return this.tree.tokens - this.sumBelow(-1);
    return all[row] - tokens[row] - this.sumBelow(row);
  }

  sumBelow(row) {
    return this.below(row).reduce((sum, child) => sum + this.columns.subtree_tokens[child], 0);
  }

  total(row) {
    return row < 0 ? this.tree.tokens : this.columns.subtree_tokens[row];
  }

  /** Rows from the top to `row`. */
  path(row) {
    const path = [];
    for (; row >= 0; row = this.columns.parent[row]) path.unshift(row);
    return path;
  }

  matches(filter, leastTokens) {
    const found = new Uint8Array(this.length);
    let count = 0;
    for (let row = 0; row < this.length; row++) {
      if (this.columns.tokens[row] >= leastTokens && FILTERS[filter](this.columns, row)) count += found[row] = 1;
    }
    return { found, count };
  }
}
