// Runs the page's script (its file is the first argument) with as much of a document as it uses. Prints what it did.
const { readFileSync } = require("fs");

class Element {
  constructor(id, text, details = []) { Object.assign(this, { id, textContent: text, hidden: true, open: false }); this.childNodes = [text]; this.details = details; this.listeners = {}; this.set = {}; }
  addEventListener(name, act) { this.listeners[name] = act; }
  setAttribute(name, value) { this.set[name] = value; }
  querySelectorAll() { return this.details.filter((one) => one.open); }
  isEqualNode(other) { return String(this.childNodes) === String(other.childNodes); }
  replaceChildren(...children) { this.childNodes = children; this.replaced = (this.replaced || 0) + 1; }
  focus() { document.activeElement = this; }
}

function page(texts) {
  const found = new Map(), history = new Element("history", "");
  for (const [id, text] of Object.entries(texts)) found.set(id, new Element(id, text, id === "figures" ? [history] : []));
  found.set("history", history);
  return {
    title: texts.title, hidden: false, activeElement: null, found,
    getElementById: (id) => found.get(id) || null,
    getSelection: () => "",
    querySelectorAll: () => ["state", "figures"].map((id) => found.get(id)),
  };
}

const timers = [], did = { reloads: 0 };
global.document = page({ title: "old", state: "well", figures: "1", stale: "", pause: "", "without-script": "" });
global.location = { reload: () => { did.reloads += 1; } };
global.setTimeout = (work) => timers.push(work);
global.DOMParser = class { parseFromString(text) { return (did.next = page(JSON.parse(text))); } };
let answer = { ok: true, redirected: false, text: async () => JSON.stringify({ title: "new", state: "well", figures: "2" }) };
global.fetch = async () => { if (answer instanceof Error) throw answer; return answer; };
const at = (id) => document.getElementById(id);
(0, eval)(readFileSync(process.argv[2], "utf8"));

(async () => {
  at("history").open = true;
  document.activeElement = at("pause");
  await timers.shift()();
  did.title = document.title;
  did.replaced = [at("state").replaced || 0, at("figures").replaced || 0];
  did.stays_open = did.next.getElementById("history").open;
  delete did.next;
  answer = new Error("it is gone");
  await timers.shift()();
  did.stale = [at("stale").hidden, at("stale").textContent];
  at("pause").listeners.click();
  answer = { ok: true, redirected: true };
  await timers.shift()();
  did.paused = [at("pause").hidden, at("pause").set["aria-pressed"], did.reloads];
  at("pause").listeners.click();
  await timers.shift()();
  did.waits = timers.length;
  console.log(JSON.stringify(did));
})();
