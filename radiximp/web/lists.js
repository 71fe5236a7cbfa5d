// Tiles, hotspots, pins and pre-warm jobs.

import { ago, el, percent, refill, short, table, whole } from "./dom.js";

const sum = (numbers) => Object.values(numbers).reduce((total, number) => total + number, 0);

export function showTiles(place, rank) {
  const asked = rank.prompt_tokens.user, hits = rank.hit_tokens.user, guard = rank.guard;
  const share = (number) => percent(asked ? number / asked : null);
  const tiles = [
    [share(sum(hits)), "of prompt tokens found"],
    [`${share(hits.device)} · ${share(hits.host)} · ${share(hits.storage)}`, "device · host · storage"],
    [share(rank.regret_tokens), "evicted, then wanted"],
    [short(sum(rank.evicted_tokens)), "tokens evicted"],
    [`${short(rank.pinned_tokens)} / ${short(rank.pin_budget_tokens)}`, "tokens pinned / budget"],
    [whole(rank.nodes), "nodes"],
    [guard ? (guard.is_tripped ? "lru" : rank.policy) : rank.policy, guard ? `ranks; lru took over ${guard.trips} times` : "ranks"],
    [guard ? percent(guard.hit_rate) : "–", guard ? `found, with answers; lru: ${percent(guard.shadow_lru_hit_rate)}` : "no guard"],
  ];
  place.replaceChildren(...tiles.map(([figure, name]) => el("div", {}, el("b", {}, figure), el("span", {}, name))));
}

export function showHotspots(place, spots, onSelect) {
  const hasText = spots.some((spot) => spot.preview !== undefined);
  const heads = ["node", "tokens", "on device", "requests", "sessions", "importance", "idle", ...(hasText ? ["first words"] : [])];
  const rows = spots.map((spot) => [
    el("button", { type: "button", className: "plain", onclick: () => onSelect(spot.node) }, String(spot.node)),
    whole(spot.tokens), whole(spot.tokens_on_device), whole(spot.queries), whole(spot.sessions), spot.importance.toFixed(2), ago(spot.age_s),
    ...(hasText ? [spot.preview ?? ""] : []),
  ]);
  const shown = table(heads, rows, "None yet: a prefix is one once three sessions used it, of enough requests.");
  if (hasText) for (const cell of shown.querySelectorAll("td:last-child")) cell.className = "text";
  refill(place, shown);
}

export function showPins(place, pins, may, onRemove) {
  const rows = pins.map((pin) => [
    pin.pin_id.slice(0, 8), pin.hard ? "hard" : "soft",
    `${whole(pin.tokens_pinned)} of ${whole(pin.tokens_requested)}`,
    pin.expires_in_s === null ? "no end" : `${ago(pin.expires_in_s)} left`,
    el("button", { type: "button", disabled: !may.change || pin.pin_id === "hint", onclick: () => onRemove(pin.pin_id), ariaLabel: `Remove pin ${pin.pin_id.slice(0, 8)}` }, "Remove"),
  ]);
  refill(place, table(["pin", "kind", "tokens", "how long", "action"], rows, "No pins."));
}

export function showJobs(place, jobs, may, onCancel) {
  const rows = jobs.map((job) => {
    const isOver = job.state === "done" || job.state === "cancelled";
    const cancel = el("button", { type: "button", disabled: isOver || !may.change, onclick: () => onCancel(job.id), ariaLabel: `Cancel job ${job.id.slice(0, 8)}` }, "Cancel");
    const failed = job.failed_prompts ? `, ${job.failed_prompts} failed` : "";
    return [job.id.slice(0, 8), job.state, job.tier, `${job.ended_prompts} of ${job.prompts}${failed}`, whole(job.tokens_prefilled), cancel];
  });
  refill(place, table(["job", "state", "tier", "prompts", "prefilled", "action"], rows, "No jobs."));
}

/** Prompts as the call takes them; a line that begins with { is an object. Throws SyntaxError with the line's number. */
export function promptsOf(text) {
  return text.split("\n").map((line, index) => {
    if (!line.trim().startsWith("{")) return line.trim() ? { text: line } : null;
    try {
      return JSON.parse(line);
    } catch (error) {
      throw new SyntaxError(`line ${index + 1}: ${error.message}`);
    }
  }).filter((prompt) => prompt !== null);
}
