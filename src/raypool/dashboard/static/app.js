// The page: who holds what, who waits and why. What it is told comes as named parts (rows.py); a part that changed is
// drawn anew, the others stay as they are. Rule: text from outside only ever becomes a text node or an attribute, never
// markup, so a component's name can say what it likes.
"use strict";

const ROWS = 50, FEW_POOLS = 6, MOST_CARDS = 12, COLOURS = 8, TIMELINE_SECONDS = 15;
const UNITS = {gpu: "GPU", mcpu: "CPU", memory_mb: "memory", step_run: "steps"};

const state = {
  parts: {}, link: {up: false, why: ""}, ahead: 0, session: null, source: null,
  look: {pool: "", component: "", waiting: 0, running: 0, ended: 0}, showAll: false, onlyWaiting: false,
  timeline: {key: "", seconds: 3600}, drawn: {}, colours: new Map(), why: new Map(),
};

// ---------------------------------------------------------------- elements and words

function h(tag, attributes, ...children) {
  const svg = ["svg", "path", "polygon", "line", "text", "g", "title", "defs", "pattern", "rect"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "width%") element.style.width = `${value}%`;
    else if (name === "left%") element.style.left = `${value}%`;
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

const $ = (id) => document.getElementById(id);
const now = () => Date.now() / 1000 + state.ahead;

function lasted(seconds) {
  const s = Math.max(Math.round(seconds), 0);
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`;
}

function countdown(seconds) {
  const s = Math.max(Math.ceil(seconds), 0);
  return `${Math.floor(s / 60)}:${String(s % 60).padStart(2, "0")}`;
}

function clock(at) {
  const day = new Date(at * 1000), today = new Date().toDateString() === day.toDateString();
  const time = day.toLocaleTimeString([], {hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false});
  return today ? time : `${day.getFullYear()}-${String(day.getMonth() + 1).padStart(2, "0")}-${String(day.getDate()).padStart(2, "0")} ${time}`;
}

function unit(key) { return UNITS[key] || key; }

function number(amount) { return Number.isInteger(amount) ? String(amount) : String(Math.round(amount * 100) / 100); }

function figure(key, amount) {
  if (key === "mcpu") return number(amount / 1000);
  if (key === "memory_mb") return Math.abs(amount) < 1000 ? `${number(amount)} MB` : `${number(amount / 1000)} GB`;
  return number(amount);
}

function amounts(demand) {
  const told = Object.entries(demand || {}).filter(([key]) => key !== "step_run");
  return told.map(([key, amount]) => `${figure(key, amount)} ${unit(key)}`).join(", ") || "nothing that is counted";
}

function plural(count, one) { return `${count.toLocaleString("en")} ${one}${count === 1 ? "" : "s"}`; }

function short(id) { return id.length > 20 ? `${id.slice(0, 12)}…` : id; }

function since(at) { return h("span", {class: "nowrap", "data-since": at}, lasted(now() - at)); }

function until(at) { return h("b", {class: "nowrap", "data-until": at}, countdown(at - now())); }

function requestLink(id) {
  return h("a", {class: "id", href: `/requests/${encodeURIComponent(id)}`, title: id}, short(id));
}

function colour(name) { return `c${state.colours.get(name) ?? COLOURS - 1}`; }

function swatch(name) { return h("i", {class: `swatch ${colour(name)}`, "aria-hidden": "true"}); }

function componentOf(one) {
  return one.component_type && one.component_type !== "team" ? `${one.component} (${one.component_type})` : one.component;
}

function put(parent, ...children) { parent.replaceChildren(...children.flat(Infinity).filter((one) => one)); }

// ---------------------------------------------------------------- asking the server

async function ask(path, body) {
  const options = body === undefined ? {} : {
    method: "POST", body: JSON.stringify(body),
    headers: {"Content-Type": "application/json", "X-Raypool-CSRF": state.session.csrf},
  };
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("this dashboard's own process does not answer");
  }
  const told = await answer.json();
  if (answer.status === 401) logIn(told.error);
  if (!answer.ok) throw new Error(told.faults ? told.faults.join("; ") : told.error);
  return told;
}

function query(fields) {
  const kept = Object.entries(fields).filter(([, value]) => value);
  return kept.length ? `?${new URLSearchParams(kept)}` : "";
}

async function begin() {
  const hash = new URLSearchParams(location.hash.slice(1));
  if (hash.get("token")) {
    history.replaceState(null, "", location.pathname + location.search);
    await openSession(hash.get("token"));
  } else {
    await openSession("");
  }
}

async function openSession(token) {
  let answer;
  try {
    answer = await fetch("/api/session", token ? {headers: {Authorization: `Bearer ${token}`}} : {});
  } catch {
    setTimeout(begin, 2000);
    return;
  }
  const told = await answer.json();
  if (answer.status === 401) { logIn(token ? told.error : ""); return; }
  if (!answer.ok) { put($("main"), h("p", {class: "error"}, told.error)); return; }
  state.session = told;
  const match = location.pathname.match(/^\/requests\/(.+)$/);
  if (match) requestPage(decodeURIComponent(match[1]));
  else overview();
}

function logIn(error) {
  if (state.source) state.source.close();
  $("link").textContent = "not signed in";
  const field = h("input", {type: "password", id: "token", autocomplete: "current-password", required: true});
  put($("main"), h("h1", {}, "This dashboard asks for its token"),
    h("form", {onsubmit: (event) => { event.preventDefault(); openSession(field.value); }},
      h("p", {}, h("label", {for: "token"}, "Token "), field, " ", h("button", {class: "primary"}, "Open")),
      error ? h("p", {class: "error", role: "alert"}, error) : null));
  field.focus();
}

// ---------------------------------------------------------------- the overview, live

function overview() {
  const query = new URLSearchParams(location.search);
  state.look.pool = query.get("pool") || "";
  state.look.component = query.get("component") || "";
  $("nav").hidden = false;
  put($("main"),
    h("h1", {class: "hidden"}, "Who holds what, who waits, and why"),
    h("div", {id: "warnings"}),
    h("div", {class: "filters"},
      h("label", {}, "Pool ", h("select", {id: "pool", onchange: (event) => look({pool: event.target.value})})),
      h("label", {}, "Component ", h("select", {id: "component", onchange: (event) => look({component: event.target.value})})),
      h("label", {id: "only", hidden: true}, h("input", {type: "checkbox",
        onchange: (event) => { state.onlyWaiting = event.target.checked; drawPools(); }}), " only pools in which somebody waits"),
      legend()),
    h("section", {id: "pools", "aria-labelledby": "pools-title"},
      h("div", {class: "head"}, h("h2", {id: "pools-title"}, "Pools"), h("span", {class: "soft", id: "pools-count"})),
      h("div", {id: "cards", class: "cards"}), h("div", {class: "pager", id: "more-cards"})),
    list("waiting", "Waiting, in order", "Who waits, and why"),
    list("running", "Holding room", "Who runs, where, and what is borrowed"),
    h("section", {id: "timeline", "aria-labelledby": "timeline-title"},
      h("div", {class: "head"}, h("h2", {id: "timeline-title"}, "Timeline"), h("span", {id: "timeline-what"}),
        h("label", {class: "small"}, "of ", h("select", {id: "timeline-key",
          onchange: (event) => { [state.timeline.pool, state.timeline.key] = JSON.parse(event.target.value); askTimeline(); }})),
        h("label", {class: "small"}, "over ", h("select", {id: "timeline-span",
          onchange: (event) => { state.timeline.seconds = Number(event.target.value); askTimeline(); }},
        [[900, "15 min"], [3600, "1 h"], [21600, "6 h"], [86400, "24 h"]].map(([value, words]) =>
          h("option", {value, selected: value === state.timeline.seconds}, words))))),
      h("div", {class: "panel", id: "timeline-panel"}, h("p", {class: "empty"}, "…"))),
    list("ended", "Ended lately", "Requests that are over"));
  state.drawn = {};
  connect();
  askEnded();
}

function list(id, title, caption) {
  return h("section", {id, "aria-labelledby": `${id}-title`},
    h("div", {class: "head"}, h("h2", {id: `${id}-title`}, title), h("span", {class: "soft", id: `${id}-count`}, "…")),
    id === "waiting" ? h("div", {id: "first"}) : null,
    h("div", {class: "panel", tabindex: "0", role: "region", "aria-label": caption}, h("div", {id: `${id}-rows`})),
    h("div", {class: "pager", id: `${id}-pager`}));
}

function legend() {
  const one = (kind, words) => h("span", {}, h("i", {class: kind, "aria-hidden": "true"}), words);
  return h("div", {class: "legend", "aria-label": "What the bars show"}, one("neutral", "within its reserve"),
    one("neutral borrowed", "borrowed"), one("neutral leaving", "leaving"), one("phantom", "phantom: Ray keeps it"),
    one("free", "free"), one("reserve", "reserve"), one("limit", "limit"));
}

function look(change) {
  Object.assign(state.look, {waiting: 0, running: 0, ended: 0}, change);
  const {pool, component} = state.look;
  history.replaceState(null, "", location.pathname + query({pool, component}) + location.hash);
  connect();
  drawPools();
  askEnded();
  state.timeline.pool = state.timeline.key = "";
  askTimeline();
}

function connect() {
  if (state.source) state.source.close();
  state.parts = Object.fromEntries(Object.entries(state.parts).filter(([name]) => name === "broker" || name.startsWith("pool:")));
  const {pool, component, waiting, running} = state.look;
  const source = state.source = new EventSource(`/api/live${query({pool, component, waiting, running})}`);
  let fresh = true;
  source.onmessage = (event) => {
    state.heard = Date.now();
    const news = JSON.parse(event.data);
    if (fresh) { fresh = false; state.parts = {}; state.drawn = {}; }
    for (const name of news.gone) delete state.parts[name];
    Object.assign(state.parts, news.set);
    state.ahead = news.now - Date.now() / 1000;
    state.link = news.link;
    draw([...news.gone, ...Object.keys(news.set)]);
  };
  source.onerror = () => { fresh = true; drawLink(); if (source.readyState === EventSource.CLOSED) setTimeout(reconnect, 2000); };
}

async function reconnect() {
  try {
    await ask("/api/session");
    connect();
  } catch { if (state.session) setTimeout(reconnect, 2000); }
}

function draw(changed) {
  drawLink();
  if (!state.parts.broker) return;
  if (changed.some((name) => name === "broker" || name.startsWith("pool:"))) {
    colours();
    drawHead();
    drawPools();
    askTimelineOnce();
  } else if (changed.some((name) => name === "waiting" || name.startsWith("request:"))) drawNext();
  if (changed.some((name) => name === "waiting" || name === "running" || name.startsWith("request:"))) {
    drawRows("waiting", waitingRow, ["Place", "Request", "Asks for", "Waits", "Why"], "Nobody waits.");
    drawRows("running", runningRow, ["Request", "Holds", "Nodes", "Since", "State"], "Nothing runs.");
  }
  if (changed.some((name) => name === "first" || name === "waiting" || name === `request:${state.parts.waiting?.ids[0]}`)) drawFirst();
}

function colours() {
  const names = new Set();
  for (const pool of pools()) for (const policy of pool.policies) names.add(componentOf(policy));
  [...names].sort().forEach((name, at) => state.colours.set(name, at % COLOURS));
}

// Those with GPUs first: they are what people look for.
function pools() {
  const found = (state.parts.broker?.pools || []).map((name) => state.parts[`pool:${name}`]).filter((pool) => pool);
  return [...found.filter((pool) => pool.capacity.gpu), ...found.filter((pool) => !pool.capacity.gpu)];
}

function drawLink() {
  const lost = state.source && state.source.readyState !== EventSource.OPEN && state.heard;
  const away = lost || !state.link.up;
  const alarm = $("alarm"), seen = state.link.looked_at;
  $("link").className = away ? "away" : "";
  if (lost) alarm.textContent = "The dashboard's own process does not answer; trying again. What is shown is old.";
  else if (away && state.link.why) {
    alarm.textContent = `The broker does not answer (${state.link.why}). It is asked again and again`
      + (seen ? `; what is shown is as it was at ${clock(seen)}.` : ".");
  } else if (state.parts.broker?.degraded) alarm.textContent = `The broker is ${state.parts.broker.degraded}`;
  else alarm.textContent = "";
  alarm.hidden = !alarm.textContent;
  if (away) { $("link").textContent = lost ? "disconnected" : seen ? "the broker is away" : "connecting …"; return; }
  const counts = state.parts.broker?.requests || {};
  const running = (counts.allocated || 0) + (counts.preempting || 0);
  $("link").textContent = `live · ${running} running · ${counts.pending || 0} waiting`
    + (counts.preempting ? ` · ${counts.preempting} told to leave` : "");
}

function drawHead() {
  const {warnings} = state.parts.broker;
  put($("warnings"), warnings.length ? h("details", {class: "warnings", open: warnings.length < 3},
    h("summary", {}, plural(warnings.length, "warning")), h("ul", {}, warnings.map((one) => h("li", {}, one)))) : null);
  const names = state.parts.broker.pools;
  choose($("pool"), ["", ...names], state.look.pool, "all pools");
  choose($("component"), ["", ...[...new Set(pools().flatMap((pool) => pool.policies.map((one) => one.component)))].sort()],
    state.look.component, "all");
  $("only").hidden = names.length <= FEW_POOLS;
}

function choose(select, values, chosen, all) {
  if (chosen && !values.includes(chosen)) values = [...values, chosen];
  const known = JSON.stringify([values, chosen]);
  if (select.dataset.known === known) return;
  select.dataset.known = known;
  put(select, values.map((value) => h("option", {value, selected: value === chosen}, value || all)));
}

// ---------------------------------------------------------------- pools

function drawPools() {
  const all = pools();
  let shown = all.filter((pool) => (!state.look.pool || pool.name === state.look.pool)
    && (!state.onlyWaiting || pool.queued)
    && (!state.look.component || pool.policies.some((one) => one.component === state.look.component)));
  const many = shown.length > FEW_POOLS;
  if (many) shown = [...shown.filter((pool) => pool.queued), ...shown.filter((pool) => !pool.queued)];
  const cards = many && !state.showAll ? shown.slice(0, MOST_CARDS) : shown;
  const place = $("cards");
  place.className = many ? "cards many" : "cards";
  const before = new Map([...place.children].map((card) => [card.dataset.name, card]));
  const after = cards.map((pool) => {
    const text = JSON.stringify([pool, many, state.session.actions]);
    const old = before.get(pool.name);
    if (old && old.dataset.drawn === text) return old;
    const card = poolCard(pool, many, old);
    card.dataset.drawn = text;
    return card;
  });
  if (after.length !== place.children.length || after.some((card, at) => place.children[at] !== card)) keepFocus(() => put(place, after));
  if (!all.length) put(place, h("p", {class: "empty"}, "There are no pools: `raypool apply -f pools.yaml` makes some."));
  $("pools-count").textContent = all.length > 1 ? (many && cards.length < shown.length ? `${cards.length} of ${shown.length}` : `${shown.length}`) : "";
  put($("more-cards"), many && shown.length > MOST_CARDS ? h("button", {onclick: () => { state.showAll = !state.showAll; drawPools(); }},
    state.showAll ? "Show fewer" : `Show all ${shown.length} pools`) : null);
  drawNext();
  fitLabels();
}

function keepFocus(change) {
  const id = document.activeElement && document.activeElement.id;
  change();
  if (id && document.activeElement?.id !== id) $(id)?.focus();
}

function poolCard(pool, compact, old) {
  const name = pool.name, id = `pool-${name}`;
  const keys = Object.keys(pool.capacity);
  const facts = [pool.queueing === "backfill" ? "backfill" : "", pool.grace_seconds ? `${number(pool.grace_seconds)} s grace` : "no grace"];
  const policies = keys.map((key) => policyTable(pool, key, keys.length > 1));
  const open = old ? old.querySelector("details")?.open : false;
  return h("article", {class: "card", "data-name": name, "aria-labelledby": id},
    h("div", {class: "head"}, h("h3", {id}, name), h("span", {class: "soft small"}, pool.description || facts.filter((one) => one).join(", ")),
      h("span", {class: "waits small"}, pool.queued ? `${pool.queued.toLocaleString("en")} waiting` : h("span", {class: "soft"}, "nobody waits"))),
    keys.map((key, at) => [bar(pool, key), compact && !at ? holders(pool, key) : null]),
    h("p", {class: "next small", "data-next": name}),
    compact ? h("details", {open}, h("summary", {class: "small"}, `${plural(pool.policies.length, "policy").replace("policys", "policies")}`), policies) : policies);
}

function holders(pool, key) {
  const holding = pool.policies.filter((policy) => policy.used[key]);
  return h("div", {class: "legend"}, holding.map((policy) => h("span", {}, swatch(componentOf(policy)), `${componentOf(policy)} ${figure(key, policy.used[key])}`)));
}

function shares(policy, key) {
  const used = policy.used[key] || 0, leaving = policy.leaving[key] || 0, above = policy.borrowed[key] || 0;
  const borrowed = above - Math.min(above, leaving);
  return {used, leaving, borrowed, within: used - leaving - borrowed};
}

function bar(pool, key) {
  const capacity = pool.capacity[key], free = pool.free[key], phantom = pool.phantom[key] || 0;
  const whole = Math.max(capacity, capacity - free) || 1;
  const segments = [], words = [];
  const add = (kind, amount, text, title) => {
    if (amount <= 0) return;
    segments.push(h("div", {class: `seg ${kind}`, "width%": 100 * amount / whole, "data-text": text, title}, h("b", {})));
    words.push(title);
  };
  for (const policy of pool.policies) {
    const name = componentOf(policy), {within, borrowed, leaving} = shares(policy, key), own = colour(name);
    add(own, within, `${name} ${figure(key, within)}`, `${name}: ${figure(key, within)} within its reserve`);
    add(`${own} borrowed`, borrowed, `${name} ${figure(key, borrowed)} borrowed`, `${name}: ${figure(key, borrowed)} borrowed`);
    add(`${own} leaving`, leaving, `${name} ${figure(key, leaving)} leaving`, `${name}: ${figure(key, leaving)} leaving`);
  }
  add("phantom", phantom, `phantom ${figure(key, phantom)}`, `phantom: ${figure(key, phantom)}`);
  add("free", free, `${figure(key, free)} free`, `free: ${figure(key, free)}`);
  const leaving = pool.leaving[key] || 0, borrowed = pool.borrowed[key] || 0;
  return h("div", {},
    h("div", {class: "keyhead"}, h("span", {}, h("b", {}, unit(key)), ` ${figure(key, capacity - free - phantom)} of ${figure(key, capacity)} in use`
      + (borrowed ? `, ${figure(key, borrowed)} borrowed` : "") + (leaving ? `, ${figure(key, leaving)} leaving` : "") + (phantom ? `, ${figure(key, phantom)} phantom` : "")),
    h("b", {class: "nowrap"}, `${figure(key, free)} free`)),
    h("div", {class: "bar", role: "img", "aria-label": `${unit(key)} in pool ${pool.name}, of ${figure(key, capacity)}: ${words.join("; ") || "nothing in use"}`}, segments));
}

function policyTable(pool, key, named) {
  const capacity = pool.capacity[key] || 1;
  const rows = pool.policies.map((policy) => {
    const name = componentOf(policy), {used, within, borrowed, leaving} = shares(policy, key), own = colour(name);
    const reserved = policy.reserved[key] || 0, limit = policy.limit[key] ?? capacity;
    const part = (kind, amount) => amount > 0 ? h("span", {class: `seg ${own} ${kind}`, "width%": 100 * Math.min(amount / capacity, 1)}) : null;
    const change = state.session.actions ? h("button", {class: "link small", id: `edit-${pool.name}-${key}-${name}`,
      "aria-label": `Change the policy of ${name} in ${pool.name}`, onclick: () => editPolicy(pool.name, policy)}, "change") : null;
    const tick = (kind, at) => h("span", {class: `tick ${kind}`, "left%": 100 * Math.min(at / capacity, 1)});
    const split = [borrowed + (leaving ? Math.min(leaving, policy.borrowed[key] || 0) : 0) ? `${figure(key, policy.borrowed[key])} borrowed` : "", leaving ? `${figure(key, leaving)} leaving` : ""].filter((one) => one);
    return h("tr", {},
      h("th", {scope: "row", class: "name"}, swatch(name), name, " ", h("span", {class: "soft priority"}, `priority ${policy.priority}`), change),
      h("td", {class: "use"}, h("div", {class: "track", "aria-hidden": "true"}, part("", within), part("borrowed", borrowed), part("leaving", leaving),
        reserved ? tick("reserve", reserved) : null, limit < capacity ? tick("limit", limit) : null)),
      h("td", {}, h("b", {}, figure(key, used)), split.length ? [" ", h("span", {class: "soft split"}, split.join(", "))] : null),
      h("td", {}, figure(key, reserved)), h("td", {}, limit < capacity ? figure(key, limit) : h("span", {class: "soft"}, "none")),
      h("td", {}, policy.queued || "–"));
  });
  const titles = ["Component", ["", "use"], "Uses", "Reserve", "Limit", "Waiting"];
  return h("table", {class: "who"}, h("caption", {class: named ? "soft small" : "hidden"}, named ? `${unit(key)} by component` : `${unit(key)} in pool ${pool.name}, by component`),
    h("thead", {}, h("tr", {}, titles.map((one) => typeof one === "string" ? h("th", {scope: "col"}, one) : h("td", {class: one[1], "aria-hidden": "true"})))),
    h("tbody", {}, rows));
}

// The first of each line is on the first page of those who wait.
function drawNext() {
  const rows = (state.parts.waiting?.ids || []).map((id) => state.parts[`request:${id}`]).filter((row) => row);
  for (const place of document.querySelectorAll("[data-next]")) {
    const pool = place.dataset.next;
    const row = state.look.waiting ? null : rows.find((one) => Object.keys(one.reasons || {})[0] === pool && one.position === 1);
    const known = row ? JSON.stringify([row.id, row.reasons[pool], row.description]) : "";
    if (place.dataset.known === known) continue;
    place.dataset.known = known;
    put(place, row ? [h("b", {}, "First in line: "), requestLink(row.id), ` of ${row.component} waits `, since(row.submitted_at), `: ${row.reasons[pool]}`] : []);
  }
}

function fitLabels() {
  for (const segment of document.querySelectorAll(".bar .seg")) {
    const words = segment.dataset.text, room = segment.clientWidth - 6, last = words.split(" ").find((one) => /^[\d.]+$/.test(one)) || "";
    const fitting = [words, words.replace(/ (borrowed|leaving)$/, ""), last].find((one) => one.length * 8 <= room) || "";
    if (segment.firstChild.textContent !== fitting) segment.firstChild.textContent = fitting;
    segment.firstChild.hidden = !fitting;
  }
}

// ---------------------------------------------------------------- tables of requests

function drawRows(kind, rowOf, titles, empty) {
  const part = state.parts[kind];
  if (!part) return;
  const place = $(`${kind}-rows`);
  const narrowed = state.look.component ? ` of ${state.look.component}` : "";
  $(`${kind}-count`).textContent = part.in_all.toLocaleString("en") + narrowed + (state.look.pool ? ` in ${state.look.pool}` : "");
  if (!part.ids.length) { put(place, h("p", {class: "empty"}, empty)); drawPager(kind, part); return; }
  const known = place.querySelector("tbody");
  const before = new Map(known ? [...known.children].map((row) => [row.dataset.id, row]) : []);
  const rows = part.ids.map((id) => {
    const one = state.parts[`request:${id}`];
    if (!one) return null;
    const text = JSON.stringify([one, state.why.get(id), colour(one.component)]);
    const old = before.get(id);
    if (old && old.dataset.drawn === text) return old;
    const row = rowOf(one);
    row.dataset.id = id;
    row.dataset.drawn = text;
    return row;
  }).filter((row) => row);
  if (known) { if (rows.length !== known.children.length || rows.some((row, at) => known.children[at] !== row)) keepFocus(() => put(known, rows)); }
  else put(place, table(titles, rows, kind));
  drawPager(kind, part);
}

function table(titles, rows, kind) {
  const last = state.session.actions && kind !== "ended" ? ["Act"] : [];
  return h("table", {class: "rows", role: "table"}, h("thead", {role: "rowgroup"}, h("tr", {role: "row"}, [...titles, ...last].map((one) => h("th", {scope: "col", role: "columnheader"}, one)))),
    h("tbody", {role: "rowgroup"}, rows));
}

function cells(first, ...others) {
  return h("tr", {role: "row"}, first, others);
}

function cell(label, attributes, ...children) { return h("td", {role: "cell", "data-label": label, ...attributes}, children); }

function nameOf(row) {
  return h("th", {scope: "row", role: "rowheader"}, swatch(row.component), h("b", {}, row.component), " ", requestLink(row.id),
    row.description ? h("div", {class: "soft small"}, row.description) : null);
}

function act(row) {
  return state.session.actions ? cell("", {}, h("button", {class: "link", id: `cancel-${row.id}`, "aria-label": `Cancel ${row.id}`, onclick: () => cancelRequest(row.id)}, "cancel")) : null;
}

function waitingRow(row) {
  const [pool, ...others] = Object.keys(row.reasons || {});
  const told = state.why.get(row.id);
  const why = [row.reason || "it is being decided"];
  const more = others.map((other) => h("div", {class: "soft"}, row.reasons[other]));
  const button = told ? null : h("button", {class: "link small", id: `why-${row.id}`, onclick: () => askWhy(row.id)}, "what would start it?");
  return cells(cell("place", {class: "nowrap"}, row.position ? `${row.position}` : "aside", pool ? h("span", {class: "soft"}, ` in ${pool}`) : null),
    nameOf(row), cell("asks for", {class: "nowrap"}, amounts(row.demand), row.workers > 1 ? h("div", {class: "soft small"}, `${row.workers} bundles`) : null,
      row.preemptible ? null : h("div", {class: "soft small"}, "not preemptible")),
    cell("waits", {}, since(row.submitted_at)),
    cell("", {class: "reason"}, why, more, row.eta ? h("div", {}, row.eta) : null, told ? wouldStart(told) : null, h("div", {}, button)), act(row));
}

async function askWhy(id) {
  try {
    state.why.set(id, (await ask(`/api/requests/${encodeURIComponent(id)}`)).why);
  } catch (error) {
    state.why.set(id, {failed: error.message});
  }
  drawRows("waiting", waitingRow, [], "");
}

function wouldStart(why) {
  if (why.failed) return h("div", {class: "error"}, why.failed);
  if (!why.would_start.length) return h("div", {class: "soft"}, "No single change is known that would start it now.");
  return h("div", {}, h("b", {}, "What would start it"), h("ul", {}, why.would_start.map((one) => h("li", {}, one.sentence))));
}

function drawFirst() {
  const place = $("first"), id = state.look.waiting ? null : state.parts.waiting?.ids[0], row = state.parts[`request:${id}`];
  if (!row) { put(place); return; }
  const first = state.parts.first?.id === id ? state.parts.first : null;
  const waits = (first?.waits || []).flatMap((one) => one.waits_for.map((who) =>
    h("li", {}, "it waits for ", requestLink(who.id), ` of ${who.component} (${amounts(who.holds)}) to leave, `, who.leaves_by ? ["in ", until(who.leaves_by), " at the latest"] : "any moment")));
  put(place, h("div", {class: "first"},
    h("p", {}, h("b", {}, "Why the first one waits: "), swatch(row.component), h("b", {}, row.component), " ", requestLink(id), " asks for ", h("b", {}, amounts(row.demand)), ", waits ", since(row.submitted_at), "."),
    h("p", {}, row.reason || ""), waits.length ? h("ul", {}, waits) : null, row.eta ? h("p", {}, row.eta) : null,
    first ? wouldStart(first) : h("p", {class: "soft"}, "What would start it is being looked for.")));
}

function runningRow(row) {
  const borrowed = Object.entries(row.borrowed || {}).filter(([, amount]) => amount);
  const states = [];
  if (row.status === "preempting") {
    states.push(h("div", {class: "notice"}, "told to leave", row.deadline ? [": ", until(row.deadline), " left"] : ""));
    if (row.preempted_by) states.push(h("div", {}, "for ", requestLink(row.preempted_by), row.preempted_by_component ? ` of ${row.preempted_by_component}` : ""));
    else states.push(h("div", {}, row.reason || ""));
  } else if (row.placing) states.push(row.reason || "being placed");
  else states.push(row.status === "allocated" ? "running" : row.status);
  if (row.opportunistic) states.push(h("div", {class: "soft"}, "backfilled: leaves first"));
  if (row.runs_until) states.push(h("div", {class: "soft"}, "may run for another ", h("span", {"data-left": row.runs_until}, lasted(row.runs_until - now()))));
  const nodes = [...new Set(row.nodes || [])];
  return cells(nameOf(row),
    cell("holds", {}, h("span", {class: "nowrap"}, amounts(row.demand)), row.pool ? h("span", {class: "soft"}, ` in ${row.pool}`) : null,
      borrowed.length ? h("div", {}, h("span", {class: "tag"}, borrowed.map(([key, amount]) => `${figure(key, amount)} ${unit(key)}`).join(", "), " borrowed")) : null),
    cell("on", {}, nodes.length ? nodes.slice(0, 3).map((node) => h("div", {class: "id", title: node}, node.slice(0, 8))) : "–", nodes.length > 3 ? h("div", {class: "soft"}, `and ${nodes.length - 3} more`) : null),
    cell("for", {}, row.granted_at ? since(row.granted_at) : "–"), cell("", {class: "reason"}, states), act(row));
}

function endedRow(row) {
  return cells(nameOf(row), cell("", {}, h("span", {class: "tag"}, row.status)), cell("ended", {class: "nowrap"}, row.ended_at ? ["", since(row.ended_at), " ago"] : "–"),
    cell("had", {}, amounts(row.demand), row.pool ? h("span", {class: "soft"}, ` in ${row.pool}`) : null), cell("", {class: "reason"}, row.reason || ""));
}

async function askEnded() {
  const {pool, component, ended} = state.look;
  let page;
  try {
    page = await ask(`/api/page${query({kind: "ended", pool, component, first: ended})}`);
  } catch (error) {
    put($("ended-rows"), h("p", {class: "empty"}, error.message));
    return;
  }
  if (!$("ended-rows")) return;
  $("ended-count").textContent = page.in_all.toLocaleString("en");
  put($("ended-rows"), page.requests.length ? table(["Request", "How", "When", "Had", "Why"], page.requests.map(endedRow), "ended") : h("p", {class: "empty"}, "Nothing has ended."));
  drawPager("ended", {...page, ids: page.requests.map((one) => one.id)});
}

function drawPager(kind, part) {
  const place = $(`${kind}-pager`);
  const first = part.first, last = first + part.ids.length;
  const known = JSON.stringify([first, last, part.in_all]);
  if (place.dataset.known === known) return;
  place.dataset.known = known;
  const turn = (to) => { state.look[kind] = Math.max(to, 0); if (kind === "ended") askEnded(); else connect(); };
  if (part.in_all <= ROWS && !first) { put(place); return; }
  keepFocus(() => put(place, h("button", {id: `${kind}-back`, disabled: first === 0, onclick: () => turn(first - ROWS)}, "‹ Before"),
    h("span", {}, part.ids.length ? `${(first + 1).toLocaleString("en")} to ${last.toLocaleString("en")} of ${part.in_all.toLocaleString("en")}` : `none of ${part.in_all} from here`),
    h("button", {id: `${kind}-on`, disabled: last >= part.in_all, onclick: () => turn(first + ROWS)}, "After ›")));
}

// ---------------------------------------------------------------- the timeline

function askTimelineOnce() {
  const known = pools().flatMap((pool) => Object.keys(pool.capacity).map((key) => [pool.name, key]))
    .filter(([pool]) => !state.look.pool || pool === state.look.pool);
  const select = $("timeline-key"), text = JSON.stringify(known);
  if (!known.length || select.dataset.known === text) return;
  select.dataset.known = text;
  const {pool, key} = state.timeline;
  if (!known.some((one) => one[0] === pool && one[1] === key)) [state.timeline.pool, state.timeline.key] = known[0];
  put(select, known.map((one) => h("option", {value: JSON.stringify(one), selected: one[0] === state.timeline.pool && one[1] === state.timeline.key}, `${unit(one[1])} in ${one[0]}`)));
  askTimeline();
}

async function askTimeline() {
  if (!$("timeline-panel")) return;
  if (!state.timeline.pool) { askTimelineOnce(); if (!state.timeline.pool) return; }
  const {pool, seconds} = state.timeline;
  try {
    const told = await ask(`/api/timeline${query({pool, seconds})}`);
    if (pool === state.timeline.pool) { state.timeline.told = told; drawTimeline(); }
  } catch (error) {
    put($("timeline-panel"), h("p", {class: "empty"}, error.message));
  }
}

function drawTimeline() {
  const panel = $("timeline-panel"), {key, told} = state.timeline;
  if (!panel || !told) return;
  const lines = told.keys[key];
  const times = told.times.length && lines ? told.times : [];
  const began = times.length ? times[0] : told.now;
  const late = began > told.since + Math.max(60, (told.now - told.since) / 50);
  const note = late ? h("p", {class: "soft small"}, `The broker has figures since ${clock(began)}.`) : "";
  if (!times.length) { put(panel, h("p", {class: "empty"}, "There are no figures yet."), note, evictionTable(told.evictions)); return; }
  put(panel, chart(told, lines, key), timelineLegend(lines, key), note, evictionTable(told.evictions));
}

function chart(told, lines, key) {
  const times0 = told.times[0];
  const width = Math.max($("timeline-panel").clientWidth - 28, 280), height = 220, left = 44, right = 8, top = 12, foot = 40;
  const to = told.now, from = Math.max(told.since, Math.min(times0 - 5, to - 120));
  const most = Math.max(...lines.capacity, 1), x = (at) => left + (width - left - right) * (at - from) / (to - from);
  const y = (amount) => height - foot - (height - foot - top) * amount / most;
  const times = told.times, ends = times.map((at, index) => Math.min(times[index + 1] ?? to, to));
  const band = (lower, upper, kind) => h("polygon", {class: kind, points: [
    ...times.flatMap((at, i) => [`${x(at).toFixed(1)},${y(upper[i]).toFixed(1)}`, `${x(ends[i]).toFixed(1)},${y(upper[i]).toFixed(1)}`]),
    ...times.map((at, i) => [`${x(ends[i]).toFixed(1)},${y(lower[i]).toFixed(1)}`, `${x(at).toFixed(1)},${y(lower[i]).toFixed(1)}`]).reverse().flat()].join(" ")});
  const areas = [];
  let below = times.map(() => 0);
  for (const name of Object.keys(lines.components).sort()) {
    const upper = below.map((under, i) => under + lines.components[name][i]);
    areas.push(h("g", {}, h("title", {}, name), band(below, upper, `area ${colour(name)}`)));
    const lent = lines.borrowed?.[name];
    if (lent?.some((amount) => amount)) areas.push(band(upper.map((at, i) => at - lent[i]), upper, "over"));
    below = upper;
  }
  const capacity = h("polygon", {class: "capacity", fill: "none", points: times.flatMap((at, i) => [`${x(at)},${y(lines.capacity[i])}`, `${x(ends[i])},${y(lines.capacity[i])}`])
    .concat(times.flatMap((at, i) => [`${x(ends[i])},${y(lines.capacity[i])}`, `${x(at)},${y(lines.capacity[i])}`].reverse()).reverse()).join(" ")});
  const grid = [0, most / 2, most].map((amount) => [h("line", {class: "grid", x1: left, x2: width - right, y1: y(amount), y2: y(amount)}),
    h("text", {x: left - 6, y: y(amount) + 4, "text-anchor": "end"}, figure(key, amount))]);
  const hours = [from, (from + to) / 2, to].map((at, i) => h("text", {x: x(at), y: height - 6, "text-anchor": ["start", "middle", "end"][i]}, clock(at).slice(-8, -3)));
  const marks = told.evictions.filter((one) => one.at >= from).map((one) => {
    const at = x(Math.min(one.at, to)), foot0 = height - foot + 16;
    return h("path", {class: "evicted", d: `M${at - 6} ${foot0}h12l-6 -13z`}, h("title", {}, evictionWords(one)));
  });
  const hatch = h("defs", {}, h("pattern", {id: "hatch", width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)"}, h("rect", {width: 3, height: 8, fill: "#fff", "fill-opacity": ".55"})));
  const label = `${unit(key)} in use in pool ${state.timeline.pool} from ${clock(from)} to ${clock(to)}; now ${Object.entries(lines.components).map(([name, line]) => `${name} ${figure(key, line.at(-1))}`).join(", ") || "nothing"}; ${plural(told.evictions.length, "eviction")}`;
  return h("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label}, hatch, grid, areas, capacity, marks, hours);
}

function timelineLegend(lines, key) {
  return h("div", {class: "legend"}, Object.keys(lines.components).sort().map((name) => h("span", {}, swatch(name), `${name}, now ${figure(key, lines.components[name].at(-1))}`)),
    h("span", {}, h("i", {class: "neutral borrowed", "aria-hidden": "true"}), "borrowed"), h("span", {}, "- - capacity"), h("span", {}, "▲ somebody was evicted"));
}

function evictionWords(one) {
  return `${clock(one.at)}: ${one.component} had to leave for ${one.by?.component || "nobody"} (${one.rule || "by a rule"})`;
}

function evictionTable(evictions) {
  if (!evictions.length) return h("p", {class: "soft small"}, "Nobody was evicted in this time.");
  const rows = evictions.slice(0, 20).map((one) => cells(h("th", {scope: "row", role: "rowheader", class: "nowrap"}, clock(one.at)),
    cell("who", {}, swatch(one.component), one.component, " ", requestLink(one.request)), cell("for", {}, one.by?.component ? [swatch(one.by.component), one.by.component, " "] : "", one.by?.request ? requestLink(one.by.request) : ""),
    cell("", {class: "reason"}, one.why || one.rule || "")));
  return h("details", {open: evictions.length <= 6}, h("summary", {}, `${plural(evictions.length, "eviction")}: who took from whom`), table(["When", "Who had to leave", "For whom", "Why"], rows, "ended"));
}

// ---------------------------------------------------------------- the page of a request

async function requestPage(id) {
  document.title = `${id} - raypool`;
  $("nav").hidden = true;
  if (!state.shownRequest) $("link").textContent = "asking …";
  let told;
  try {
    told = await ask(`/api/requests/${encodeURIComponent(id)}`);
  } catch (error) {
    if (!state.session) return;
    $("link").className = "away";
    $("link").textContent = "not answered";
    if (!state.shownRequest) put($("main"), h("p", {}, h("a", {href: "/"}, "‹ All pools")), h("h1", {}, id), h("p", {class: "error", role: "alert"}, error.message));
    setTimeout(() => requestPage(id), 3000);
    return;
  }
  const {request, why} = told;
  state.ahead = told.now - Date.now() / 1000;
  $("link").className = "";
  $("link").textContent = `as of ${clock(told.now)}`;
  const text = JSON.stringify([request, {...why, at: 0}, told.events]);
  if (state.shownRequest !== text) {
    state.shownRequest = text;
    state.colours.set(request.component, state.colours.get(request.component) ?? 0);
    keepFocus(() => put($("main"), requestParts(request, why, told.events)));
  }
  if (!["released", "preempted", "cancelled", "rejected"].includes(request.status)) setTimeout(() => requestPage(id), 3000);
}

function requestParts(request, why, events) {
  const live = !["released", "preempted", "cancelled", "rejected"].includes(request.status);
  return [h("p", {}, h("a", {href: "/"}, "‹ All pools")),
    h("h1", {}, `${request.component} `, h("span", {class: "id"}, request.id), " ", h("span", {class: "tag"}, request.status)),
    request.description ? h("p", {class: "soft"}, request.description) : null,
    state.session.actions && live ? h("p", {}, h("button", {class: "danger", id: "cancel", onclick: () => cancelRequest(request.id)}, "Cancel this request")) : null,
    h("div", {class: "columns"},
      h("section", {class: "panel"}, h("h2", {}, "Story"), h("ol", {class: "story"}, storyOf(request, why, events))),
      h("section", {class: "panel why"}, h("h2", {}, live && request.status === "pending" ? "Why it waits" : "Why"), whyParts(request, why)),
      h("section", {class: "panel"}, h("h2", {}, "Facts"), facts(request)))];
}

function moment(at, words, kind) { return h("li", {class: kind || ""}, h("time", {datetime: at ? new Date(at * 1000).toISOString() : null}, at ? clock(at) : ""), words); }

function storyOf(request, why, events) {
  const found = [];
  const waited = request.granted_at ? request.granted_at - request.submitted_at : null;
  found.push([request.submitted_at, moment(request.submitted_at, ["submitted: asks for ", amounts(request.demand), request.workers > 1 ? ` in ${request.workers} bundles` : "", request.retry_of ? ["; it takes up again ", requestLink(request.retry_of)] : ""])]);
  for (const one of events || []) {
    if (["submitted", "granted", "released", "cancelled", "rejected"].includes(one.kind)) continue;
    found.push([one.at, moment(one.at, [one.kind, one.by?.component ? ` for ${one.by.component} ` : "", one.by?.request ? requestLink(one.by.request) : "", one.why ? `: ${one.why}` : ""], one.kind === "evicted" ? "bad" : "")]);
  }
  if (request.granted_at) found.push([request.granted_at, moment(request.granted_at, `granted in pool ${request.pool || "-"} after ${lasted(waited)}` + (request.nodes.length ? ` on ${plural(new Set(request.nodes).size, "node")}` : "") + (request.attempt > 1 ? `, at attempt ${request.attempt}` : ""))]);
  const evicted = why.evicted || request.preempted_by;
  if (evicted && !(events || []).some((one) => one.kind === "evicted")) {
    const about = [request.status === "preempting" ? "told to leave for " : "had to leave for ", request.preempted_by ? requestLink(request.preempted_by) : "somebody", request.preempted_by_component ? ` of ${request.preempted_by_component}` : "", request.preemption_rule ? ` (${request.preemption_rule})` : ""];
    found.push([request.ended_at ? request.ended_at - 0.001 : Infinity, moment(null, about, "bad")]);
  }
  found.sort((one, other) => one[0] - other[0]);
  const items = found.map((one) => one[1]);
  if (request.status === "pending") items.push(moment(null, [request.placing ? "now: being placed" : "now: waits, for ", request.placing ? "" : since(request.submitted_at), request.position ? `, number ${request.position} in line` : ""], "now"));
  if (request.status === "allocated") items.push(moment(null, ["now: runs, for ", since(request.granted_at)], "now"));
  if (request.status === "preempting") items.push(moment(null, ["now: leaves", request.deadline ? [", ", until(request.deadline), " left"] : ""], "now"));
  if (request.ended_at) items.push(moment(request.ended_at, [`${request.status}`, request.granted_at ? ` after it ran for ${lasted(request.ended_at - request.granted_at)}` : "", request.reason ? `: ${request.reason}` : ""], ["preempted", "cancelled", "rejected"].includes(request.status) ? "bad" : ""));
  return items;
}

function whyParts(request, why) {
  const parts = [h("p", {}, why.sentence)];
  for (const wait of why.waits) {
    parts.push(h("h3", {}, `in pool ${wait.pool}`, wait.position ? `, number ${wait.position} in line` : ""), why.sentence.endsWith(wait.sentence) ? null : h("p", {}, wait.sentence));
    const keys = Object.keys(wait.figures);
    if (keys.length) {
      const rows = [["It asks for", "asks"], ["Free", "free"], ["Leaving", "leaving"], ["Capacity", "capacity"], ["Used by its own component", "used"], ["Reserved for it", "reserved"], ["Its limit", "limit"]]
        .map(([words, name]) => h("tr", {}, h("th", {scope: "row"}, words), keys.map((key) => h("td", {}, figure(key, wait.figures[key][name])))));
      parts.push(h("table", {class: "small figures"}, h("thead", {}, h("tr", {}, h("td", {}), keys.map((key) => h("th", {scope: "col"}, unit(key))))), h("tbody", {}, rows)));
    }
    for (const [key, have] of Object.entries(wait.figures)) {
      const held = Object.entries(have.held || {});
      if (held.length) parts.push(h("p", {class: "small"}, `${unit(key)} held by ${held.map(([name, amount]) => `${name} ${figure(key, amount)}`).join(", ")}${have.others ? `, others ${figure(key, have.others)}` : ""}`));
    }
    if (wait.ahead.length) parts.push(h("p", {class: "small"}, "Ahead of it: ", wait.ahead.map((id, at) => [at ? ", " : "", requestLink(id)]), wait.ahead_in_all > wait.ahead.length ? ` and ${wait.ahead_in_all - wait.ahead.length} more` : ""));
    if (wait.waits_for.length) parts.push(h("ul", {}, wait.waits_for.map((one) => h("li", {}, "it waits for ", requestLink(one.id), ` of ${one.component} (${amounts(one.holds)}) to leave, `, one.leaves_by ? ["in ", until(one.leaves_by)] : "any moment"))));
  }
  if (why.evicted) {
    parts.push(h("ul", {}, Object.entries(why.evicted.before).map(([key, before]) => h("li", {},
      `${unit(key)}: ${why.component} used ${figure(key, before)}, ${figure(key, why.evicted.after[key])} without it, ${figure(key, why.evicted.reserved[key])} reserved`))));
  }
  if (why.expected) parts.push(h("p", {}, why.expected));
  if (request.status === "pending") parts.push(wouldStart(why));
  if (why.tried.length) parts.push(h("ul", {}, why.tried.map((one) => h("li", {}, one.sentence))));
  if (why.takers.length) parts.push(h("p", {}, h("b", {}, "It may be taken by")), h("ul", {}, why.takers.map((one) => h("li", {}, one.sentence))));
  else if (request.status === "allocated") parts.push(h("p", {class: "soft"}, "Nobody could take it from there."));
  return parts;
}

function facts(request) {
  const borrowed = Object.entries(request.borrowed).filter(([, amount]) => amount);
  const rows = [["Asks for", amounts(request.demand)], ["Pool", request.pool || Object.keys(request.reasons).join(", ")], ["Borrowed", borrowed.map(([key, amount]) => `${figure(key, amount)} ${unit(key)}`).join(", ")],
    ["Preemptible", request.preemptible ? "yes" : "no"], ["Bundles", `${request.workers}, ${request.strategy}`], ["Nodes", [...new Set(request.nodes)].join("\n")],
    ["Placement group", request.group_name], ["Job", request.job], ["Lifetime", request.lifetime], ["At most", request.max_duration_seconds ? lasted(request.max_duration_seconds) : ""],
    ["Retry of", request.retry_of ? requestLink(request.retry_of) : ""]];
  return h("dl", {class: "facts"}, rows.filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

// ---------------------------------------------------------------- actions

function openDialog(title, ...children) {
  const dialog = $("dialog");
  put(dialog, h("h2", {id: "dialog-title"}, title), children);
  dialog.showModal();
}

function closeButton(words) { return h("button", {type: "button", onclick: () => $("dialog").close()}, words); }

function cancelRequest(id) {
  const reason = h("input", {id: "reason", maxlength: 500, placeholder: "cancelled by an operator"});
  const error = h("p", {class: "error", role: "alert"});
  openDialog(`Cancel ${short(id)}?`, h("form", {onsubmit: async (event) => {
    event.preventDefault();
    try {
      await ask(`/api/requests/${encodeURIComponent(id)}/cancel`, {reason: reason.value});
      $("dialog").close();
      if ($("ended-rows")) askEnded(); else requestPage(id);
    } catch (problem) { error.textContent = problem.message; }
  }}, h("p", {}, "It ends, whether it waits or runs; what runs in it is stopped."), h("label", {}, "What its owner is told", reason), error,
  h("div", {class: "buttons"}, closeButton("Keep it"), h("button", {class: "danger"}, "Cancel the request"))));
}

async function editPolicy(pool, policy) {
  const name = componentOf(policy);
  let written;
  try {
    const found = (await ask(`/api/policies${query({pool})}`)).policies;
    written = found.find((one) => one.component === policy.component && (one.component_type || "team") === policy.component_type);
  } catch (problem) { openDialog("Policies", h("p", {class: "error"}, problem.message), h("div", {class: "buttons"}, closeButton("Close"))); return; }
  if (!written) { openDialog("Policies", h("p", {class: "error"}, "This policy is no more."), h("div", {class: "buttons"}, closeButton("Close"))); return; }
  const keys = Object.keys(state.parts[`pool:${pool}`]?.capacity || {});
  const field = (value, least) => h("input", {type: "number", min: least, step: 1, value: value ?? "", oninput: () => changed()});
  const priority = field(written.priority, 0);
  const inputs = {reserved: {}, limit: {}};
  for (const kind of ["reserved", "limit"]) for (const key of keys) inputs[kind][key] = field(written[kind]?.[key], 0);
  const note = h("input", {maxlength: 500}), error = h("p", {class: "error", role: "alert"}), follows = h("div", {"aria-live": "polite"});
  const apply = h("button", {class: "primary", type: "button", disabled: true, id: "apply"}, "Apply");
  let number = null;
  const changed = () => { number = null; apply.disabled = true; put(follows); error.textContent = ""; };
  const wanted = () => {
    const filled = (kind) => Object.fromEntries(Object.entries(inputs[kind]).filter(([, input]) => input.value !== "").map(([key, input]) => [key, Number(input.value)]));
    return {policies: [{...written, priority: Number(priority.value), reserved: filled("reserved"), limit: filled("limit")}]};
  };
  apply.addEventListener("click", async () => {
    try {
      await ask("/api/apply", {...wanted(), number, note: note.value});
      $("dialog").close();
    } catch (problem) { changed(); error.textContent = problem.message; }
  });
  const label = (words, input) => h("label", {}, words, input);
  openDialog(`Policy of ${name} in ${pool}`, h("form", {onsubmit: async (event) => {
    event.preventDefault();
    changed();
    try {
      const told = await ask("/api/preview", wanted());
      number = told.number;
      put(follows, previewParts(told));
      apply.disabled = false;
    } catch (problem) { error.textContent = problem.message; }
  }}, label("Priority", priority),
  h("fieldset", {}, h("legend", {}, "Reserved"), keys.map((key) => label(key, inputs.reserved[key]))),
  h("fieldset", {}, h("legend", {}, "Limit; empty: the capacity"), keys.map((key) => label(key, inputs.limit[key]))),
  label("Why, for the history", note), error, follows,
  h("div", {class: "buttons"}, closeButton("Leave it"), h("button", {id: "preview"}, "See what would follow"), apply)));
}

function previewParts(told) {
  const lines = told.consequences.map((one) => h("li", {}, h("b", {}, one.kind), ` ${one.sentence}`));
  for (const [kind, count] of Object.entries(told.more)) lines.push(h("li", {}, `${kind}: and ${count} more`));
  for (const one of told.promises) lines.push(h("li", {}, h("b", {}, "promises"), ` ${one}`));
  for (const one of told.warnings) lines.push(h("li", {}, h("b", {}, "warning"), ` ${one}`));
  return [h("h3", {}, "What would follow"), lines.length ? h("ul", {}, lines) : h("p", {}, "Nothing follows for who waits or runs now.")];
}

// ---------------------------------------------------------------- time goes on

setInterval(() => {
  const at = now();
  for (const one of document.querySelectorAll("[data-since]")) tick(one, lasted(at - one.dataset.since));
  for (const one of document.querySelectorAll("[data-until]")) tick(one, countdown(one.dataset.until - at));
  for (const one of document.querySelectorAll("[data-left]")) tick(one, lasted(one.dataset.left - at));
  if (state.source && state.heard && Date.now() - state.heard > 20000 && state.source.readyState === EventSource.OPEN) connect();
}, 1000);

function tick(element, text) { if (element.textContent !== text) element.textContent = text; }

setInterval(() => { if (!document.hidden && state.session && $("timeline-panel")) { askTimeline(); if (!state.look.ended) askEnded(); } }, TIMELINE_SECONDS * 1000);

let resized = null;
addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(() => { fitLabels(); drawTimeline(); }, 100); });

// What is not looked at is not asked for.
document.addEventListener("visibilitychange", () => {
  if (!state.source) return;
  if (document.hidden) { state.source.close(); state.heard = 0; } else connect();
});

begin();
