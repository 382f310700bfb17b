// The page: who holds what, who waits and why. What it is told comes as named parts (rows.py); a part that changed is
// drawn anew, the others stay as they are. Rule: text from outside only ever becomes a text node or an attribute, never
// markup, so a component's name can say what it likes.
"use strict";

const ROWS = 50, FEW_POOLS = 6, MOST_CARDS = 12, COLOURS = 8, EVICTIONS_SHOWN = 20;
const AGAIN_SECONDS = {connect: 2, request: 3, figures: 15}, SILENT_SECONDS = 20;
const UNITS = {gpu: "GPU", mcpu: "CPU", memory_mb: "memory", step_run: "steps"};
const OVER = ["released", "preempted", "cancelled", "rejected"];

const state = {
  session: null,  // what this dashboard may do; null while it asks for its token
  source: null, lost: "", heard: 0,  // the live connection; why it is lost
  parts: {}, link: {up: false, why: "", looked_at: null}, ahead: 0,
  look: {pool: "", component: "", waiting: 0, running: 0, ended: 0},
  showAll: false, onlyWaiting: false, open: new Set(), barWidth: 0, colours: new Map(), answers: new Map(),
  ended: null, endedAsked: "",
  timeline: {pool: "", key: "", seconds: 3600, told: null},
  request: {id: "", shown: "", at: 0, timer: null},
};

// ---------------------------------------------------------------- elements

const SVG = ["svg", "path", "polygon", "polyline", "line", "text", "g", "title", "defs", "pattern", "rect"];

function h(tag, attributes, ...children) {
  const element = SVG.includes(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
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

// The children become these; those that are the same stay where they are.
function put(parent, ...children) {
  const wanted = children.flat(Infinity).filter((one) => one);
  keepFocus(() => {
    const staying = new Set(wanted);
    for (const child of [...parent.childNodes]) if (!staying.has(child)) child.remove();
    wanted.forEach((child, at) => { if (parent.childNodes[at] !== child) parent.insertBefore(child, parent.childNodes[at] || null); });
  });
}

// Who was at something that is drawn anew is at the same thing of the new: by its id, or by its place in what has a key.
function keepFocus(change) {
  const was = document.activeElement, holder = was?.closest("[data-key]");
  const place = holder ? focusable(holder).indexOf(was) : -1;
  change();
  if (!was || was === document.body || was === document.activeElement) return;
  const again = was.isConnected ? was : was.id ? $(was.id)
    : place >= 0 ? focusable(document.querySelector(`[data-key="${CSS.escape(holder.dataset.key)}"]`))[place] : null;
  again?.focus({preventScroll: true});
}

function focusable(element) {
  return element ? [...element.querySelectorAll("a[href], button, input, select, summary, [tabindex]")] : [];
}

// Whether what is to be drawn there is not what was drawn last.
function differs(element, ...what) {
  const text = JSON.stringify(what);
  if (element.drawn === text) return false;
  element.drawn = text;
  return true;
}

function say(element, text) { if (element.textContent !== text) element.textContent = text; }

// ---------------------------------------------------------------- words

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
  const two = (amount) => String(amount).padStart(2, "0");
  const time = [day.getHours(), day.getMinutes(), day.getSeconds()].map(two).join(":");
  return today ? time : `${day.getFullYear()}-${two(day.getMonth() + 1)}-${two(day.getDate())} ${time}`;
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

function count(amount) { return amount.toLocaleString("en"); }

function plural(amount, one, many = `${one}s`) { return `${count(amount)} ${amount === 1 ? one : many}`; }

function sentence(text) { return text ? text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".") : ""; }

function short(id) { return id.length > 20 ? `${id.slice(0, 12)}…` : id; }

function since(at) { return h("span", {class: "nowrap", "data-since": at}, lasted(now() - at)); }

function until(at) { return h("b", {class: "nowrap", "data-until": at}, countdown(at - now())); }

function requestLink(id) {
  return h("a", {class: "id", href: `/requests/${encodeURIComponent(id)}`, title: id}, short(id));
}

function colour(name) { return `c${state.colours.get(name) ?? COLOURS - 1}`; }

function swatch(name) { return h("i", {class: `swatch ${colour(name)}`, "aria-hidden": "true"}); }

// A component with its colour, which stays beside the first line of a long name.
function named(name, tag = "span") { return h("span", {class: "named"}, swatch(name), h(tag, {}, name)); }

function componentOf(one) {
  return one.component_type && one.component_type !== "team" ? `${one.component} (${one.component_type})` : one.component;
}

function someOf(shown, inAll) { return inAll > shown ? ` and ${count(inAll - shown)} more` : ""; }

// ---------------------------------------------------------------- asking the server

// Raises Error with one sentence.
async function ask(path, body) {
  const {answer, told} = await fetched(path, body === undefined ? {} : {
    method: "POST", body: JSON.stringify(body),
    headers: {"Content-Type": "application/json", "X-Raypool-CSRF": state.session?.csrf || ""},
  });
  if (answer.status === 401 && state.session) logIn(told.error);
  if (!answer.ok) throw new Error(told.faults ? told.faults.join("; ") : told.error);
  return told;
}

async function fetched(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("the dashboard's own process does not answer");
  }
  try {
    return {answer, told: await answer.json()};
  } catch {
    throw new Error(`the dashboard stumbled (${answer.status}): what it printed where it was started says why`);
  }
}

function query(fields) {
  const kept = Object.entries(fields).filter(([, value]) => value);
  return kept.length ? `?${new URLSearchParams(kept)}` : "";
}

function begin() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token") || "";
  if (token) history.replaceState(null, "", location.pathname + location.search);
  const match = location.pathname.match(/^\/requests\/(.+)$/), asked = new URLSearchParams(location.search);
  if (match) state.request.id = decoded(match[1]);
  Object.assign(state.look, {pool: asked.get("pool") || "", component: asked.get("component") || ""});
  if (!token && !match && !document.hidden) connect();  // what is seen is there sooner than the session is
  openSession(token);
}

async function openSession(token) {
  let answer, told;
  try {
    ({answer, told} = await fetched("/api/session", token ? {headers: {Authorization: `Bearer ${token}`}} : {}));
  } catch (problem) {
    alarm(`${sentence(problem.message)} Trying again.`);
    setTimeout(openSession, AGAIN_SECONDS.connect * 1000, token);
    return;
  }
  alarm("");
  if (answer.status === 401) return logIn(token ? told.error : "");
  if (!answer.ok) return put($("main"), h("p", {class: "error", role: "alert"}, sentence(told.error)));
  state.session = told;
  if (state.request.id) requestPage(); else overview();
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;  // somebody wrote it by hand
  }
}

function logIn(error) {
  state.source?.close();
  state.source = state.session = null;
  clearTimeout(state.request.timer);
  state.request.shown = "";
  $("dialog").close();
  $("nav").hidden = true;
  say($("link"), "not signed in");
  const field = h("input", {type: "password", id: "token", autocomplete: "current-password", required: true});
  put($("main"), h("h1", {}, "This dashboard asks for its token"),
    h("form", {onsubmit: (event) => { event.preventDefault(); openSession(field.value.trim()); }},
      h("p", {}, h("label", {for: "token"}, "Token "), field, " ", h("button", {class: "primary"}, "Open")),
      error ? h("p", {class: "error", role: "alert"}, sentence(error)) : null));
  field.focus();
}

function alarm(text) {
  say($("alarm"), text);
  $("alarm").hidden = !text;
}

// ---------------------------------------------------------------- the overview, live

function overview() {
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
      h("div", {class: "head"}, h("h2", {id: "timeline-title"}, "Timeline"),
        h("label", {class: "small"}, "of ", h("select", {id: "timeline-key", onchange: (event) => chooseTimeline(event.target.value)})),
        h("label", {class: "small"}, "over ", h("select", {id: "timeline-span",
          onchange: (event) => { state.timeline.seconds = Number(event.target.value); askTimeline(); }},
        [[900, "15 min"], [3600, "1 h"], [21600, "6 h"], [86400, "24 h"]].map(([value, words]) =>
          h("option", {value, selected: value === state.timeline.seconds}, words))))),
      h("div", {class: "panel", id: "timeline-panel"}, h("p", {class: "empty"}, "…"))),
    list("ended", "Ended lately", "Requests that are over"));
  if (state.source) draw(Object.keys(state.parts)); else connect();
  askEnded();
}

function list(id, title, caption) {
  return h("section", {id, "aria-labelledby": `${id}-title`},
    h("div", {class: "head"}, h("h2", {id: `${id}-title`}, title), h("span", {class: "soft", id: `${id}-count`}, "…")),
    id === "waiting" ? h("div", {id: "first", "data-key": "first"}) : null,
    h("div", {class: "panel", tabindex: "0", role: "region", "aria-label": caption}, h("div", {id: `${id}-rows`})),
    h("div", {class: "pager", id: `${id}-pager`}));
}

function legend() {
  const one = (kind, words) => h("span", {}, h("i", {class: kind, "aria-hidden": "true"}), words);
  return h("div", {class: "legend", role: "group", "aria-label": "What the bars show"}, one("neutral", "within its reserve"),
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
  state.timeline.pool = "";
  drawTimelineChoice();
}

function lookedAt() {
  const {pool, component, waiting, running} = state.look;
  return query({pool, component, waiting, running});
}

function connect() {
  state.source?.close();
  const source = state.source = new EventSource(`/api/live${lookedAt()}`);
  let fresh = true;
  source.onmessage = (event) => {
    const news = JSON.parse(event.data);
    if (fresh) { fresh = false; state.parts = {}; }
    for (const name of news.gone) delete state.parts[name];
    Object.assign(state.parts, news.set);
    Object.assign(state, {heard: Date.now(), lost: "", link: news.link, ahead: news.now - Date.now() / 1000});
    keepFocus(() => draw([...news.gone, ...Object.keys(news.set)]));  // some is drawn in two steps
  };
  source.onerror = () => {
    if (source !== state.source) return;
    fresh = true;
    state.lost = "the dashboard's own process does not answer";
    drawLink();
    if (source.readyState === EventSource.CLOSED) setTimeout(connectAgain, AGAIN_SECONDS.connect * 1000, source);
  };
}

// The server has refused, or is gone; the browser does not tell which.
async function connectAgain(source) {
  if (source !== state.source || document.hidden) return;
  try {
    await ask(`/api/state${lookedAt()}`);
  } catch (problem) {
    if (source !== state.source) return;
    state.lost = problem.message;
    drawLink();
    setTimeout(connectAgain, AGAIN_SECONDS.connect * 1000, source);
    return;
  }
  if (source === state.source) connect();
}

function draw(changed) {
  drawLink();
  if (!state.parts.broker || !$("cards")) return;
  const has = (...names) => changed.some((name) => names.some((one) => name === one || (one.endsWith(":") && name.startsWith(one))));
  const recoloured = has("broker", "pool:") && chooseColours();
  if (has("broker", "pool:")) {
    drawHead();
    drawPools();
    drawTimelineChoice();
  } else if (has("waiting", "request:")) drawNext();
  if (recoloured || has("waiting", "running", "request:")) { drawRows("waiting"); drawRows("running"); }
  if (recoloured || has("first", "waiting", "request:")) drawFirst();
  if (recoloured) { drawEnded(); drawTimeline(); }
}

// Whether any is another now.
function chooseColours() {
  const names = [...new Set(pools().flatMap((pool) => pool.policies.map(componentOf)))].sort();
  const before = JSON.stringify([...state.colours]);
  state.colours = new Map(names.map((name, at) => [name, at % COLOURS]));
  return JSON.stringify([...state.colours]) !== before;
}

// Those with GPUs first: they are what people look for.
function pools() {
  const found = (state.parts.broker?.pools || []).map((name) => state.parts[`pool:${name}`]).filter((pool) => pool);
  return [...found.filter((pool) => pool.capacity.gpu), ...found.filter((pool) => !pool.capacity.gpu)];
}

function drawLink() {
  const {lost, link, parts} = state, old = link.looked_at ? `; what is shown is as it was at ${clock(link.looked_at)}.` : ".";
  if (lost) alarm(`${sentence(lost)} Trying again${old}`);
  else if (!link.up && link.why) alarm(`${sentence(link.why)} It is asked again and again${old}`);
  else alarm(parts.broker?.degraded ? `The broker is ${parts.broker.degraded}` : "");
  const away = Boolean(lost || !link.up);
  $("link").className = away ? "away" : "";
  if (away) { say($("link"), lost ? "disconnected" : link.why ? "the broker is away" : "connecting …"); return; }
  const counts = parts.broker?.requests || {}, running = (counts.allocated || 0) + (counts.preempting || 0);
  say($("link"), `live · ${count(running)} running · ${count(counts.pending || 0)} waiting`
    + (counts.preempting ? ` · ${count(counts.preempting)} told to leave` : ""));
}

function drawHead() {
  const {warnings, pools: names} = state.parts.broker, place = $("warnings");
  if (differs(place, warnings)) {
    const all = h("ul", {}), fill = () => put(all, warnings.map((one) => h("li", {}, one)));
    put(place, warnings.length > 1 ? h("details", {class: "warnings", ontoggle: fill}, h("summary", {}, `${count(warnings.length)} warnings`), all)
      : warnings.map((one) => h("div", {class: "warnings"}, h("b", {}, "Warning: "), one)));
  }
  choose($("pool"), ["", ...names], state.look.pool, "all pools");
  const components = new Set(pools().flatMap((pool) => pool.policies.map((one) => one.component)));
  choose($("component"), ["", ...[...components].sort()], state.look.component, "all");
  $("only").hidden = names.length <= FEW_POOLS;
}

function choose(select, values, chosen, all) {
  if (chosen && !values.includes(chosen)) values = [...values, chosen];
  if (differs(select, values, chosen)) put(select, values.map((value) => h("option", {value, selected: value === chosen}, value || all)));
}

// ---------------------------------------------------------------- pools

function drawPools() {
  const all = pools(), {pool: one, component} = state.look;
  let shown = all.filter((pool) => (!one || pool.name === one) && (!state.onlyWaiting || pool.queued)
    && (!component || pool.policies.some((policy) => policy.component === component)));
  const many = shown.length > FEW_POOLS;
  if (many) shown = [...shown.filter((pool) => pool.queued), ...shown.filter((pool) => !pool.queued)];
  const place = $("cards"), before = new Map([...place.children].map((card) => [card.dataset.key, card]));
  const drawn = [];
  const cards = (many && !state.showAll ? shown.slice(0, MOST_CARDS) : shown).map((pool) => {
    const what = [pool, many, state.open.has(pool.name), [...state.colours]], old = before.get(`pool ${pool.name}`);
    if (old && !differs(old, what)) return old;
    const card = poolCard(pool, many);
    differs(card, what);
    drawn.push(card);
    return card;
  });
  place.className = many ? "cards many" : "cards";
  put(place, cards.length ? cards : h("p", {class: "empty"}, all.length ? "No pool is like that."
    : "There are no pools: `raypool apply -f pools.yaml` makes some."));
  say($("pools-count"), cards.length < shown.length ? `${cards.length} of ${shown.length}` : all.length > 1 ? `${shown.length}` : "");
  const more = $("more-cards");
  if (differs(more, many, shown.length, state.showAll)) {
    put(more, many && shown.length > MOST_CARDS ? h("button", {id: "show-all", onclick: () => { state.showAll = !state.showAll; drawPools(); }},
      state.showAll ? "Show fewer" : `Show all ${shown.length} pools`) : null);
  }
  fitLabels(drawn);
  drawNext();
}

function poolCard(pool, compact) {
  const {name} = pool, id = `pool-${name}`, keys = Object.keys(pool.capacity), open = state.open.has(name);
  const facts = [pool.description, pool.queueing === "backfill" ? "backfill" : "",
    pool.grace_seconds ? `${number(pool.grace_seconds)} s grace` : "no grace"].filter((one) => one);
  const tables = () => keys.map((key) => policyTable(pool, key, keys.length > 1));
  return h("article", {class: "card", "data-key": `pool ${name}`, "aria-labelledby": id},
    h("div", {class: "head"}, h("h3", {id}, name), h("span", {class: "soft small"}, facts.join(" · ")),
      h("span", {class: "waits small"}, pool.queued ? `${count(pool.queued)} waiting` : h("span", {class: "soft"}, "nobody waits"))),
    keys.map((key, at) => [bar(pool, key), compact && !at ? holders(pool, key) : null]),
    h("p", {class: "next small", "data-next": name}),
    compact ? h("details", {open, ontoggle: (event) => openCard(name, event.target.open)},
      h("summary", {class: "small"}, plural(pool.policies.length, "policy", "policies")), open ? tables() : null) : tables());
}

// What is shut is not made.
function openCard(name, open) {
  if (open === state.open.has(name)) return;
  if (open) state.open.add(name); else state.open.delete(name);
  keepFocus(drawPools);
}

function holders(pool, key) {
  const holding = pool.policies.filter((policy) => policy.used[key]);
  return h("div", {class: "legend"}, holding.map((policy) => h("span", {}, swatch(componentOf(policy)),
    `${componentOf(policy)} ${figure(key, policy.used[key])}`)));
}

// What leaves is the last of a policy's line, so it borrows first.
function shares(policy, key) {
  const used = policy.used[key] || 0, leaving = policy.leaving[key] || 0, above = policy.borrowed[key] || 0;
  const borrowed = Math.max(above - leaving, 0);
  return {used, leaving, above, borrowed, within: used - leaving - borrowed};
}

function bar(pool, key) {
  const capacity = pool.capacity[key], free = pool.free[key], phantom = pool.phantom[key] || 0;
  const whole = Math.max(capacity, capacity - free) || 1;  // what is used may be more than there is by now
  const segments = [], words = [];
  const add = (kind, amount, text, title) => {
    if (amount <= 0) return;
    const segment = h("div", {class: `seg ${kind}`, "width%": 100 * amount / whole, title}, h("b", {hidden: true}));
    Object.assign(segment, {share: amount / whole, texts: [text, text.replace(/ (borrowed|leaving)$/, ""), figure(key, amount)]});
    segments.push(segment);
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
  const parts = [["borrowed", pool.borrowed[key]], ["leaving", pool.leaving[key]], ["phantom", phantom]].filter(([, amount]) => amount);
  const use = [`${figure(key, capacity - free - phantom)} of ${figure(key, capacity)} in use`,
    ...parts.map(([word, amount]) => `${figure(key, amount)} ${word}`)].join(", ");
  return h("div", {},
    h("div", {class: "keyhead"}, h("span", {}, h("b", {}, unit(key)), ` ${use}`), h("b", {class: "nowrap"}, `${figure(key, free)} free`)),
    h("div", {class: "bar", role: "img", "aria-label": `${unit(key)} in pool ${pool.name}, of ${figure(key, capacity)}: ${words.join("; ") || "nothing in use"}`},
      segments));
}

// All bars are equally wide, so one is measured.
function fitLabels(cards) {
  const width = document.querySelector(".bar")?.clientWidth || 0;
  if (width !== state.barWidth) { state.barWidth = width; cards = document.querySelectorAll(".card"); }
  for (const card of cards) {
    for (const segment of card.querySelectorAll(".bar .seg")) {
      const fitting = segment.texts.find((one) => one.length * 8 <= segment.share * width - 6) || "";
      segment.firstChild.hidden = !fitting;
      say(segment.firstChild, fitting);
    }
  }
}

function policyTable(pool, key, several) {
  const capacity = pool.capacity[key] || 1;
  const at = (amount) => 100 * Math.min(amount / capacity, 1);
  const rows = pool.policies.map((policy) => {
    const name = componentOf(policy), {used, within, borrowed, leaving, above} = shares(policy, key), own = colour(name);
    const reserved = policy.reserved[key] || 0, limit = policy.limit[key] ?? capacity, limited = limit < capacity;
    const part = (kind, amount) => amount > 0 ? h("span", {class: `seg ${own} ${kind}`, "width%": at(amount)}) : null;
    const change = state.session.actions ? h("button", {class: "link small", id: `edit-${pool.name}-${key}-${name}`,
      "aria-label": `Change the policy of ${name} in ${pool.name}`, onclick: () => editPolicy(pool.name, policy)}, "change") : null;
    const split = [above ? `${figure(key, above)} borrowed` : "", leaving ? `${figure(key, leaving)} leaving` : ""].filter((one) => one);
    return h("tr", {},
      h("th", {scope: "row", class: "name"}, named(name), h("span", {class: "soft priority"}, `priority ${policy.priority}`), change),
      h("td", {class: "use"}, h("div", {class: "track", "aria-hidden": "true"},
        part("", within), part("borrowed", borrowed), part("leaving", leaving),
        reserved ? h("span", {class: "tick reserve", "left%": at(reserved)}) : null,
        limited ? h("span", {class: "tick limit", "left%": at(limit)}) : null)),
      h("td", {}, h("b", {}, figure(key, used)), split.map((one) => h("span", {class: "soft split"}, one))),
      h("td", {}, figure(key, reserved)),
      h("td", {}, limited ? figure(key, limit) : h("span", {class: "soft"}, "none")),
      h("td", {}, policy.queued ? count(policy.queued) : "–"));
  });
  const title = (words) => h("th", {scope: "col"}, words);
  return h("table", {class: "who"},
    h("caption", {class: several ? "soft small" : "hidden"}, `${unit(key)} by component`),
    h("thead", {}, h("tr", {}, title("Component"), h("td", {class: "use", "aria-hidden": "true"}),
      ["Uses", "Reserve", "Limit", "Waiting"].map(title))),
    h("tbody", {}, rows));
}

// The first of each line is on the first page of those who wait.
function drawNext() {
  if (!state.parts.waiting) return;  // it is on its way
  const rows = state.look.waiting ? [] : state.parts.waiting.ids.map((id) => state.parts[`request:${id}`]);
  const first = new Map(rows.filter((row) => row?.place?.[1] === 1).map((row) => [row.place[0], row]));
  for (const place of document.querySelectorAll("[data-next]")) {
    const pool = place.dataset.next, row = first.get(pool);
    if (!differs(place, row ? [row.id, row.component, row.submitted_at, row.reasons[pool]] : null)) continue;
    put(place, row ? h("span", {}, h("b", {}, "First in line: "), requestLink(row.id), ` of ${row.component} waits `,
      since(row.submitted_at), `: ${row.reasons[pool]}`) : null);
  }
}

// ---------------------------------------------------------------- tables of requests

const TABLES = {
  waiting: {titles: ["Place", "Request", "Asks for", "Waits", "Why"], row: waitingRow, empty: "Nobody waits."},
  running: {titles: ["Request", "Holds", "Nodes", "Since", "State"], row: runningRow, empty: "Nothing runs."},
  ended: {titles: ["Request", "How", "When", "Had", "Why"], row: endedRow, empty: "Nothing has ended."},
};

function drawRows(kind) {
  const part = state.parts[kind];
  if (part) drawTable(kind, part.ids.map((id) => state.parts[`request:${id}`]).filter((row) => row), part);
}

function drawTable(kind, rows, {in_all: inAll, first}) {
  const {titles, row: drawnRow, empty} = TABLES[kind], {pool, component} = state.look, place = $(`${kind}-rows`);
  say($(`${kind}-count`), count(inAll) + (component ? ` of ${component}` : "") + (pool ? ` in ${pool}` : ""));
  if (!rows.length) put(place, h("p", {class: "empty"}, inAll ? "None from here on." : empty));
  else {
    if (!place.querySelector("tbody")) put(place, table(kind === "ended" || !state.session.actions ? titles : [...titles, "Act"], []));
    const body = place.querySelector("tbody"), before = new Map([...body.children].map((row) => [row.dataset.key, row]));
    put(body, rows.map((one) => {
      const key = `${kind} ${one.id}`, what = [one, state.answers.get(one.id), colour(one.component)], old = before.get(key);
      if (old && !differs(old, what)) return old;
      const row = drawnRow(one);
      row.dataset.key = key;
      differs(row, what);
      return row;
    }));
  }
  drawPager(kind, first, rows.length, inAll);
}

// Shown as blocks on a phone, so what each is has to be said.
function table(titles, rows) {
  return h("table", {class: "rows", role: "table"}, h("thead", {role: "rowgroup"}, h("tr", {role: "row"},
    titles.map((one) => h("th", {scope: "col", role: "columnheader"}, one)))), h("tbody", {role: "rowgroup"}, rows));
}

function rowOf(...children) { return h("tr", {role: "row"}, children); }

function cell(label, attributes, ...children) { return h("td", {role: "cell", "data-label": label, ...attributes}, children); }

function nameOf(row) {
  return h("th", {scope: "row", role: "rowheader"}, named(row.component, "b"), " ", requestLink(row.id),
    row.description ? h("div", {class: "soft small"}, row.description) : null);
}

function act(row) {
  return state.session.actions ? cell("", {}, h("button", {class: "link", id: `cancel-${row.id}`, "aria-label": `Cancel ${row.id}`,
    onclick: () => cancelRequest(row.id)}, "cancel")) : null;
}

function waitingRow(row) {
  const reasons = Object.values(row.reasons || {}), answer = state.answers.get(row.id);
  const asking = h("button", {class: "link small", id: `why-${row.id}`, onclick: () => askWhy(row.id)}, answer ? "ask again" : "what would start it?");
  return rowOf(
    cell("place", {class: "nowrap"}, row.place ? [`${count(row.place[1])}`, h("span", {class: "soft"}, ` in ${row.place[0]}`)] : "aside"),
    nameOf(row),
    cell("asks for", {class: "nowrap"}, amounts(row.demand), row.workers > 1 ? h("div", {class: "soft small"}, `${row.workers} bundles`) : null,
      row.preemptible ? null : h("div", {class: "soft small"}, "not preemptible")),
    cell("waits", {}, since(row.submitted_at)),
    cell("", {class: "reason"}, reasons[0] || row.reason || "it is being decided", reasons.slice(1).map((one) => h("div", {class: "soft"}, one)),
      row.eta ? h("div", {}, row.eta) : null,
      answer?.failed ? h("div", {class: "error"}, sentence(answer.failed)) : answer ? wouldStart(answer.why, `What would start it, as of ${clock(answer.at)}`) : null,
      h("div", {}, asking)),
    act(row));
}

async function askWhy(id) {
  try {
    const {why, at} = await ask(`/api/requests/${encodeURIComponent(id)}`);
    state.answers.set(id, {why, at});
  } catch (problem) {
    state.answers.set(id, {failed: problem.message});
  }
  if (state.source) drawRows("waiting");
}

function wouldStart(why, title) {
  if (!why.would_start.length) return h("div", {class: "soft"}, `${title}: no single change that is known.`);
  return h("div", {}, h("b", {}, title), h("ul", {}, why.would_start.map((one) => h("li", {}, one.sentence))));
}

function leavers(wait) {
  return [...wait.waits_for.map((one) => h("li", {}, requestLink(one.id), ` of ${one.component} holds ${amounts(one.holds)} and leaves `,
    one.leaves_by ? ["in ", until(one.leaves_by), " at the latest"] : "any moment now")),
  wait.waits_for_in_all > wait.waits_for.length ? h("li", {}, `${count(wait.waits_for_in_all - wait.waits_for.length)} more have to leave`) : null];
}

function drawFirst() {
  const place = $("first"), id = state.look.waiting ? null : state.parts.waiting?.ids[0], row = state.parts[`request:${id}`];
  const first = state.parts.first?.id === id ? state.parts.first : null;
  if (!differs(place, row, first, colour(row?.component))) return;
  const leaving = (first?.waits || []).flatMap(leavers).filter((one) => one);
  put(place, row ? h("div", {class: "first"},
    h("p", {}, h("b", {}, "Why the first one waits: "), named(row.component, "b"), " ", requestLink(id), " asks for ",
      h("b", {}, amounts(row.demand)), ", waits ", since(row.submitted_at), "."),
    h("p", {}, sentence(row.reason || "it is being decided")), leaving.length ? h("ul", {}, leaving) : null,
    row.eta ? h("p", {}, sentence(row.eta)) : null,
    first ? wouldStart(first, leaving.length ? "What else would start it" : "What would start it")
      : h("p", {class: "soft"}, "What would start it is being looked for.")) : null);
}

function runningRow(row) {
  const borrowed = Object.entries(row.borrowed || {}).filter(([, amount]) => amount), states = [];
  if (row.status === "preempting") {
    states.push(h("div", {class: "notice"}, "told to leave", row.deadline ? [": ", until(row.deadline), " left"] : ""));
    states.push(h("div", {}, row.preempted_by ? ["for ", requestLink(row.preempted_by),
      row.preempted_by_component ? ` of ${row.preempted_by_component}` : ""] : row.reason || ""));
  } else states.push(row.placing ? row.reason || "being placed" : "running");
  if (row.opportunistic) states.push(h("div", {class: "soft"}, "backfilled: leaves first"));
  if (row.runs_until) states.push(h("div", {class: "soft"}, "may run for another ", h("span", {"data-left": row.runs_until}, lasted(row.runs_until - now()))));
  const nodes = [...new Set(row.nodes || [])];
  return rowOf(nameOf(row),
    cell("holds", {}, h("span", {class: "nowrap"}, amounts(row.demand)), row.pool ? h("span", {class: "soft"}, ` in ${row.pool}`) : null,
      borrowed.length ? h("div", {}, h("span", {class: "tag"}, borrowed.map(([key, amount]) => `${figure(key, amount)} ${unit(key)}`).join(", "), " borrowed")) : null),
    cell("on", {}, nodes.length ? nodes.slice(0, 3).map((node) => h("div", {class: "id", title: node}, node.slice(0, 8))) : "–",
      nodes.length > 3 ? h("div", {class: "soft"}, someOf(3, nodes.length)) : null),
    cell("for", {}, row.granted_at ? since(row.granted_at) : "–"), cell("", {class: "reason"}, states), act(row));
}

function endedRow(row) {
  return rowOf(nameOf(row), cell("", {}, h("span", {class: "tag"}, row.status)),
    cell("ended", {class: "nowrap"}, row.ended_at ? [since(row.ended_at), " ago"] : "–"),
    cell("had", {}, amounts(row.demand), row.pool ? h("span", {class: "soft"}, ` in ${row.pool}`) : null),
    cell("", {class: "reason"}, row.reason || ""));
}

async function askEnded() {
  const {pool, component, ended} = state.look, asked = query({kind: "ended", pool, component, first: ended});
  state.endedAsked = asked;
  let page, problem;
  try {
    page = await ask(`/api/page${asked}`);
  } catch (error) {
    problem = error;
  }
  if (!$("ended-rows") || state.endedAsked !== asked) return;  // another page is looked at by now
  if (problem) put($("ended-rows"), h("p", {class: "empty"}, sentence(problem.message)));
  else {
    state.ended = page;
    drawEnded();
  }
}

function drawEnded() {
  if (state.ended) drawTable("ended", state.ended.requests, state.ended);
}

function drawPager(kind, first, shown, inAll) {
  const place = $(`${kind}-pager`), last = first + shown;
  if (!differs(place, first, last, inAll)) return;
  if (inAll <= ROWS && !first) { put(place); return; }
  const turn = (to) => { state.look[kind] = Math.max(to, 0); if (kind === "ended") askEnded(); else connect(); };
  put(place, h("button", {id: `${kind}-back`, disabled: first === 0, onclick: () => turn(first - ROWS)}, "‹ Before"),
    h("span", {}, `${shown ? `${count(first + 1)} to ${count(last)}` : "none"} of ${count(inAll)}`),
    h("button", {id: `${kind}-on`, disabled: last >= inAll, onclick: () => turn(first + ROWS)}, "After ›"));
}

// ---------------------------------------------------------------- the timeline

function chooseTimeline(text) {
  [state.timeline.pool, state.timeline.key] = JSON.parse(text);
  askTimeline();
}

function drawTimelineChoice() {
  const known = pools().filter((pool) => !state.look.pool || pool.name === state.look.pool)
    .flatMap((pool) => Object.keys(pool.capacity).map((key) => [pool.name, key]));
  const {timeline} = state, select = $("timeline-key"), chosen = ([pool, key]) => pool === timeline.pool && key === timeline.key;
  const lost = !known.some(chosen);
  if (!known.length || !(differs(select, known) || lost)) return;
  if (lost) [timeline.pool, timeline.key] = known[0];
  put(select, known.map((one) => h("option", {value: JSON.stringify(one), selected: chosen(one)}, `${unit(one[1])} in ${one[0]}`)));
  if (lost) askTimeline();
}

async function askTimeline() {
  const {pool, seconds} = state.timeline, panel = $("timeline-panel");
  if (!panel || !pool) return;
  let told, problem;
  try {
    told = await ask(`/api/timeline${query({pool, seconds})}`);
  } catch (error) {
    problem = error;
  }
  if (panel !== $("timeline-panel") || pool !== state.timeline.pool || seconds !== state.timeline.seconds) return;
  if (problem) { put(panel, h("p", {class: "empty"}, sentence(problem.message))); return; }
  state.timeline.told = told;
  drawTimeline();
}

function drawTimeline() {
  const panel = $("timeline-panel"), {key, told} = state.timeline;
  if (!panel || !told) return;
  const lines = told.keys[key], open = panel.querySelector("details")?.open;
  const began = told.times.length ? told.times[0] : told.now;
  const late = began > told.since + Math.max(told.step_seconds, (told.now - told.since) / 50);
  put(panel, lines && told.times.length ? [chart(panel, told, lines, key), timelineLegend(lines)] : h("p", {class: "empty"}, "There are no figures yet."),
    late ? h("p", {class: "soft small"}, `The broker has figures since ${clock(began)}.`) : null, evictionTable(told, open));
}

// Steps of which the figures are known, in runs that follow each other.
function runsOf(told, lines) {
  const runs = [];
  let run = null;
  told.times.forEach((from, at) => {
    if (lines.capacity[at] === null) { run = null; return; }
    if (!run) runs.push(run = []);
    run.push({at, from, to: Math.min(from + told.step_seconds, told.now)});
  });
  return runs;
}

function chart(panel, told, lines, key) {
  const runs = runsOf(told, lines), names = Object.keys(lines.components).sort();
  const uses = told.times.map((_, at) => names.reduce((sum, name) => sum + (lines.components[name][at] || 0), 0));
  const most = Math.max(...lines.capacity, ...uses, 1e-9);
  const scale = [0, most / 2, most].map((amount) => [amount, figure(key, amount)]);
  const width = Math.max(panel.clientWidth - 28, 280), height = 220, right = 8, top = 12, foot = 40;
  const left = 14 + 8 * Math.max(...scale.map(([, text]) => text.length));
  const to = told.now, from = Math.max(told.since, Math.min(told.times[0], to - 120));
  const x = (at) => left + (width - left - right) * (Math.min(Math.max(at, from), to) - from) / (to - from);
  const y = (amount) => height - foot - (height - foot - top) * amount / most;
  const point = (at, amount) => `${x(at).toFixed(1)},${y(amount).toFixed(1)}`;
  const outline = (run, amount) => run.flatMap((step) => [point(step.from, amount(step.at)), point(step.to, amount(step.at))]);
  const band = (run, lower, upper, kind) => h("polygon", {class: kind, points: [...outline(run, upper), ...outline(run, lower).reverse()].join(" ")});
  const areas = runs.map((run) => {
    let below = () => 0;
    return names.map((name) => {
      const under = below, own = (at) => lines.components[name][at] || 0, lent = (at) => lines.borrowed[name]?.[at] || 0;
      const upper = (at) => under(at) + own(at);
      below = upper;
      return h("g", {}, h("title", {}, name), band(run, under, upper, `area ${colour(name)}`),
        run.some((step) => lent(step.at)) ? band(run, (at) => upper(at) - lent(at), upper, "over") : null);
    });
  });
  const capacity = runs.map((run) => h("polyline", {class: "capacity", points: outline(run, (at) => lines.capacity[at]).join(" ")}));
  const grid = scale.map(([amount, text]) => [h("line", {class: "grid", x1: left, x2: width - right, y1: y(amount), y2: y(amount)}),
    h("text", {x: left - 6, y: y(amount) + 4, "text-anchor": "end"}, text)]);
  const hours = [from, (from + to) / 2, to].map((at, i) => h("text", {x: x(at), y: height - 6, "text-anchor": ["start", "middle", "end"][i]},
    clock(at).slice(-8, -3)));
  const marks = told.evictions.filter((one) => one.at >= from).map((one) =>
    h("path", {class: "evicted", d: `M${x(one.at) - 6} ${height - foot + 16}h12l-6 -13z`}, h("title", {}, evictionWords(one))));
  const hatch = h("defs", {}, h("pattern", {id: "hatch", width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)"},
    h("rect", {width: 3, height: 8, fill: "#fff", "fill-opacity": ".55"})));
  const last = names.map((name) => `${name} ${figure(key, lines.components[name].at(-1) || 0)}`).join(", ") || "nothing";
  const label = `${unit(key)} in use in pool ${state.timeline.pool} from ${clock(from)} to ${clock(to)}, at the end ${last}; ${evictionCount(told)}`;
  return h("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label}, hatch, grid, areas, capacity, marks, hours);
}

function timelineLegend(lines) {
  return h("div", {class: "legend"}, Object.keys(lines.components).sort().map((name) => h("span", {}, swatch(name), name)),
    h("span", {}, h("i", {class: "neutral borrowed", "aria-hidden": "true"}), "borrowed"), h("span", {}, "- - capacity"),
    h("span", {}, h("span", {class: "mark"}, "▲"), " somebody was evicted"));
}

function evictionWords(one) {
  return `${clock(one.at)}: ${one.component} had to leave for ${one.by.component || "nobody"} (${one.rule || "by a rule"})`;
}

function evictionCount({evictions, most_evictions: most}) {
  return `${evictions.length < most ? "" : "the last "}${plural(evictions.length, "eviction")}`;
}

function evictionTable(told, open) {
  const {evictions} = told, shown = evictions.slice(0, EVICTIONS_SHOWN);
  if (!evictions.length) return h("p", {class: "soft small"}, "Nobody was evicted in this time.");
  const rows = shown.map((one) => rowOf(h("th", {scope: "row", role: "rowheader", class: "nowrap"}, clock(one.at)),
    cell("who", {}, named(one.component), " ", requestLink(one.request)),
    cell("for", {}, one.by.component ? [named(one.by.component), " "] : "", one.by.request ? requestLink(one.by.request) : ""),
    cell("", {class: "reason"}, one.why || one.rule || "")));
  return h("details", {open: open ?? evictions.length <= 6, "data-key": "evictions"},
    h("summary", {}, `${evictionCount(told)}: who took from whom`), table(["When", "Who had to leave", "For whom", "Why"], rows),
    evictions.length > shown.length ? h("p", {class: "soft small"}, `The last ${shown.length} are shown; \`raypool events\` has them all.`) : null);
}

// ---------------------------------------------------------------- the page of a request

async function requestPage() {
  const {request} = state, {id} = request;
  clearTimeout(request.timer);
  document.title = `${id} - raypool`;
  $("nav").hidden = true;
  let told;
  try {
    told = await ask(`/api/requests/${encodeURIComponent(id)}`);
  } catch (problem) {
    if (!state.session) return;
    $("link").className = "away";
    say($("link"), "not answered");
    if (request.shown) alarm(`${sentence(problem.message)} What is shown is as it was at ${clock(request.at)}.`);
    else put($("main"), h("p", {}, h("a", {href: "/"}, "‹ All pools")), h("h1", {}, id), h("p", {class: "error", role: "alert"}, sentence(problem.message)));
    askRequestAgain();
    return;
  }
  alarm("");
  state.ahead = told.now - Date.now() / 1000;
  request.at = told.at;
  $("link").className = "";
  say($("link"), `as of ${clock(told.at)}`);
  const text = JSON.stringify([told.request, {...told.why, at: 0}, told.events]);
  if (request.shown !== text) {
    request.shown = text;
    put($("main"), requestParts(told.request, told.why, told.events));
  }
  if (!OVER.includes(told.request.status)) askRequestAgain();
}

function askRequestAgain() {
  clearTimeout(state.request.timer);
  if (!document.hidden) state.request.timer = setTimeout(requestPage, AGAIN_SECONDS.request * 1000);
}

function requestParts(request, why, events) {
  const live = !OVER.includes(request.status);
  return [h("p", {}, h("a", {href: "/", id: "back"}, "‹ All pools")),
    h("h1", {}, `${componentOf(request)} `, h("span", {class: "id"}, request.id), " ", h("span", {class: "tag"}, request.status)),
    request.description ? h("p", {class: "soft"}, request.description) : null,
    state.session.actions && live ? h("p", {}, h("button", {class: "danger", id: "cancel", onclick: () => cancelRequest(request.id)}, "Cancel this request")) : null,
    h("div", {class: "columns", "data-key": "request"},
      h("section", {class: "panel"}, h("h2", {}, "Story"), h("ol", {class: "story"}, storyOf(request, events))),
      h("section", {class: "panel why"}, h("h2", {}, request.status === "pending" ? "Why it waits" : "Why"), whyParts(request, why)),
      h("section", {class: "panel"}, h("h2", {}, "Facts"), facts(request)))];
}

function moment(at, words, kind) {
  return h("li", {class: kind || ""}, at ? h("time", {datetime: new Date(at * 1000).toISOString()}, clock(at)) : null, words);
}

// The request says how it began and ended; the broker's records, as far as it has kept them, what was between.
function storyOf(request, events) {
  const {status, submitted_at: submitted, granted_at: granted, ended_at: ended} = request, found = [];
  const tell = (at, rank, words, kind) => found.push({at, rank, item: moment(at, words, kind)});
  tell(submitted, 0, ["submitted: asks for ", amounts(request.demand), request.workers > 1 ? ` in ${request.workers} bundles` : "",
    request.retry_of ? ["; it takes up again ", requestLink(request.retry_of)] : ""]);
  const nodes = request.nodes.length ? `, on ${plural(new Set(request.nodes).size, "node")}` : "";
  for (const one of events) {
    if (one.kind === "submitted" || OVER.includes(one.kind)) continue;
    const evicted = one.kind === "evicted";
    if (one.kind === "notice") tell(one.at, 3, `notice: it has to be gone by ${clock(one.facts.deadline)}`);
    else if (one.kind === "granted") tell(one.at, 1, `granted${one.pool ? ` in pool ${one.pool}` : ""}: ${one.why}`);
    else if (one.kind === "ready") tell(one.at, 2, `runs, ${lasted(one.at - submitted)} after it was submitted${nodes}`);
    else {
      tell(one.at, one.kind === "freed" ? 5 : 2, [one.kind, evicted && one.by.request ? [` for ${one.by.component} `, requestLink(one.by.request)] : "",
        one.why ? `: ${one.why}` : ""], evicted ? "bad" : "");
    }
  }
  if (granted && !events.some((one) => one.kind === "granted")) {
    tell(granted, 1, `granted${request.pool ? ` in pool ${request.pool}` : ""}, ${lasted(granted - submitted)} after it was submitted${nodes}`);
  }
  const told = events.some((one) => one.kind === "evicted");
  if (request.preempted_by && !told) {
    found.push({at: ended || Infinity, rank: 2, item: moment(null, [status === "preempting" ? "told to leave for " : "had to leave for ",
      requestLink(request.preempted_by), request.preempted_by_component ? ` of ${request.preempted_by_component}` : "",
      request.preemption_rule ? ` (${request.preemption_rule})` : ""], "bad")});
  }
  if (ended) {
    tell(ended, 4, [status, granted ? ` after it ran for ${lasted(ended - granted)}` : "", request.reason && !told ? `: ${request.reason}` : ""],
      status === "released" ? "" : "bad");
  }
  found.sort((one, other) => one.at - other.at || one.rank - other.rank);
  const still = {
    pending: () => request.placing ? ["now: being placed"] : ["now: waits, for ", since(submitted), request.position ? `, number ${request.position} in line` : ""],
    allocated: () => ["now: runs, for ", since(granted)],
    preempting: () => ["now: leaves", request.deadline ? [", ", until(request.deadline), " left"] : ""],
  }[status];
  return [...found.map((one) => one.item), still ? moment(null, still(), "now") : null];
}

const FIGURES = [["It asks for", "asks"], ["Free", "free"], ["Leaving", "leaving"], ["Phantom", "phantom"], ["Capacity", "capacity"],
  ["Used by its own component", "used"], ["Reserved for it", "reserved"], ["Its limit", "limit"]];

function whyParts(request, why) {
  const parts = [h("p", {}, why.sentence)];
  for (const wait of why.waits) {
    parts.push(h("h3", {}, `in pool ${wait.pool}`, wait.position ? `, number ${count(wait.position)} in line` : ""),
      why.sentence.endsWith(wait.sentence) ? null : h("p", {}, wait.sentence), waitFigures(wait),
      wait.ahead.length ? h("p", {class: "small"}, "Ahead of it: ", wait.ahead.map((id, at) => [at ? ", " : "", requestLink(id)]),
        someOf(wait.ahead.length, wait.ahead_in_all)) : null,
      wait.waits_for.length ? h("ul", {}, leavers(wait)) : null);
  }
  if (why.evicted) {
    parts.push(h("ul", {}, Object.entries(why.evicted.before).map(([key, before]) => h("li", {},
      `${unit(key)}: ${why.component} used ${figure(key, before)}, ${figure(key, why.evicted.after[key])} without it, `
      + `${figure(key, why.evicted.reserved[key])} reserved`))));
  }
  if (why.expected) parts.push(h("p", {}, sentence(why.expected)));
  if (request.status === "pending") parts.push(wouldStart(why, "What would start it"));
  if (why.tried.length) parts.push(h("ul", {}, why.tried.map((one) => h("li", {}, one.sentence))));
  if (why.takers.length) parts.push(h("p", {}, h("b", {}, "It may be taken by")), h("ul", {}, why.takers.map((one) => h("li", {}, one.sentence))));
  else if (request.status === "allocated") parts.push(h("p", {class: "soft"}, "Nobody could take it from there."));
  return parts;
}

function waitFigures({figures}) {
  const keys = Object.keys(figures);
  if (!keys.length) return null;
  const rows = FIGURES.filter(([, name]) => name !== "phantom" || keys.some((key) => figures[key].phantom)).map(([words, name]) =>
    h("tr", {}, h("th", {scope: "row"}, words), keys.map((key) => h("td", {}, figure(key, figures[key][name])))));
  const held = keys.map((key) => {
    const by = Object.entries(figures[key].held).map(([name, amount]) => `${name} ${figure(key, amount)}`);
    if (figures[key].others) by.push(`others ${figure(key, figures[key].others)}`);
    return by.length ? h("p", {class: "small"}, `${unit(key)} held by ${by.join(", ")}`) : null;
  });
  return [h("table", {class: "small figures"}, h("thead", {}, h("tr", {}, h("td", {}), keys.map((key) => h("th", {scope: "col"}, unit(key))))),
    h("tbody", {}, rows)), held];
}

function facts(request) {
  const borrowed = Object.entries(request.borrowed).filter(([, amount]) => amount);
  const rows = [["Asks for", amounts(request.demand)], ["Pool", request.pool || Object.keys(request.reasons).join(", ")],
    ["Borrowed", borrowed.map(([key, amount]) => `${figure(key, amount)} ${unit(key)}`).join(", ")],
    ["Preemptible", request.preemptible ? "yes" : "no"], ["Bundles", `${request.workers}, ${request.strategy}`],
    ["Nodes", [...new Set(request.nodes)].map((node) => h("div", {class: "id"}, node))],
    ["Placement group", request.group_name], ["Job", request.job], ["Lifetime", request.lifetime],
    ["At most", request.max_duration_seconds ? lasted(request.max_duration_seconds) : ""],
    ["Retry of", request.retry_of ? requestLink(request.retry_of) : ""]];
  return h("dl", {class: "facts"}, rows.filter(([, value]) => Array.isArray(value) ? value.length : value)
    .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

// ---------------------------------------------------------------- actions

function openDialog(title, ...children) {
  const dialog = $("dialog"), from = document.activeElement?.id;
  put(dialog, h("h2", {id: "dialog-title"}, title), children);
  dialog.onclose = () => { if (document.activeElement === document.body && from) $(from)?.focus(); };  // it was drawn anew
  dialog.showModal();
}

function closeButton(words) { return h("button", {type: "button", onclick: () => $("dialog").close()}, words); }

function cancelRequest(id) {
  const reason = h("input", {id: "reason", maxlength: 500, placeholder: "cancelled by an operator"});
  const error = h("p", {class: "error", role: "alert"});
  const cancel = async (event) => {
    event.preventDefault();
    try {
      await ask(`/api/requests/${encodeURIComponent(id)}/cancel`, {reason: reason.value});
    } catch (problem) { say(error, sentence(problem.message)); return; }
    $("dialog").close();
    if (state.source) askEnded(); else requestPage();
  };
  openDialog(`Cancel ${short(id)}?`, h("form", {onsubmit: cancel}, h("p", {}, "It ends, whether it waits or runs; what runs in it is stopped."),
    h("label", {}, "What its owner is told", reason), error,
    h("div", {class: "buttons"}, closeButton("Keep it"), h("button", {class: "danger"}, "Cancel the request"))));
}

async function editPolicy(pool, policy) {
  const name = componentOf(policy);
  let written, problem = "this policy is no more";
  try {
    written = (await ask(`/api/policies${query({pool})}`)).policies
      .find((one) => one.component === policy.component && (one.component_type || "team") === policy.component_type);
  } catch (error) { problem = error.message; }
  if (!state.session) return;
  if (!written) { openDialog("Policies", h("p", {class: "error"}, sentence(problem)), h("div", {class: "buttons"}, closeButton("Close"))); return; }
  openDialog(`Policy of ${name} in ${pool}`, policyForm(written, Object.keys(state.parts[`pool:${pool}`]?.capacity || {})));
}

// What is applied is what was looked at: any change of a field asks for another look.
function policyForm(written, keys) {
  const field = (value, more) => h("input", {type: "number", min: 0, step: 1, value: value ?? "", oninput: () => changed(), ...more});
  const priority = field(written.priority, {required: true}), inputs = {};
  for (const kind of ["reserved", "limit"]) inputs[kind] = Object.fromEntries(keys.map((key) => [key, field(written[kind]?.[key])]));
  const note = h("input", {maxlength: 500}), error = h("p", {class: "error", role: "alert"}), follows = h("div", {"aria-live": "polite"});
  let number = null;
  const changed = () => { number = null; apply.disabled = true; put(follows); say(error, ""); };
  const filled = (kind) => Object.fromEntries(keys.filter((key) => inputs[kind][key].value !== "").map((key) => [key, Number(inputs[kind][key].value)]));
  const wanted = () => ({policies: [{...written, priority: Number(priority.value), reserved: filled("reserved"), limit: filled("limit")}]});
  const preview = async (event) => {
    event.preventDefault();
    changed();
    const asked = JSON.stringify(wanted());
    let told;
    try {
      told = await ask("/api/preview", wanted());
    } catch (problem) { say(error, sentence(problem.message)); return; }
    if (asked !== JSON.stringify(wanted())) return;
    number = told.number;
    put(follows, previewParts(told));
    apply.disabled = false;
  };
  const apply = h("button", {class: "primary", type: "button", disabled: true, id: "apply", onclick: async () => {
    try {
      await ask("/api/apply", {...wanted(), number, note: note.value});
    } catch (problem) { changed(); say(error, sentence(problem.message)); return; }
    $("dialog").close();
  }}, "Apply");
  const label = (words, input) => h("label", {}, words, input);
  return h("form", {onsubmit: preview}, label("Priority", priority),
    h("fieldset", {}, h("legend", {}, "Reserved"), keys.map((key) => label(key, inputs.reserved[key]))),
    h("fieldset", {}, h("legend", {}, "Limit; empty: the capacity"), keys.map((key) => label(key, inputs.limit[key]))),
    label("Why, for the history", note), error, follows,
    h("div", {class: "buttons"}, closeButton("Leave it"), h("button", {id: "preview"}, "See what would follow"), apply));
}

function previewParts(told) {
  const line = (kind, words) => h("li", {}, h("b", {}, kind), ` ${words}`);
  const lines = [...told.consequences.map((one) => line(one.kind, one.sentence)),
    ...Object.entries(told.more).map(([kind, more]) => line(kind, `and ${count(more)} more`)),
    ...told.promises.map((one) => line("promises", one)), ...told.warnings.map((one) => line("warning", one))];
  return [h("h3", {}, "What would follow"), lines.length ? h("ul", {}, lines) : h("p", {}, "Nothing follows for who waits or runs now.")];
}

// ---------------------------------------------------------------- time goes on

setInterval(() => {
  const at = now();
  for (const one of document.querySelectorAll("[data-since]")) say(one, lasted(at - one.dataset.since));
  for (const one of document.querySelectorAll("[data-until]")) say(one, countdown(one.dataset.until - at));
  for (const one of document.querySelectorAll("[data-left]")) say(one, lasted(one.dataset.left - at));
  if (state.source?.readyState === EventSource.OPEN && Date.now() - state.heard > SILENT_SECONDS * 1000) { state.heard = Date.now(); connect(); }
}, 1000);

setInterval(() => {
  if (document.hidden || !state.source) return;
  askTimeline();
  if (!state.look.ended) askEnded();
}, AGAIN_SECONDS.figures * 1000);

let resized = null;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => { fitLabels([]); drawTimeline(); }, 100);
});

// What is not looked at is not asked for.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) { state.source?.close(); clearTimeout(state.request.timer); return; }
  if (state.source) connect();
  else if (state.session && state.request.id) requestPage();
});

begin();
