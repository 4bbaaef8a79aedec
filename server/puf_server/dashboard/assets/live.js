// Keeps a page current: server-sent events say that something changed, and the page fetches itself again.
// The server renders everything. This script only exchanges the parts that are marked with data-live.
"use strict";
(() => {
  const root = document.documentElement;
  const connection = document.getElementById("connection");
  const list = document.getElementById("events");
  const MOST_EVENTS = 50, PAUSE_MS = 150, LEAST_MS = 500, IDLE_MS = 5000, RETRY_MS = 2000;
  let last = Number(root.dataset.after), due = 0, started = 0, running = false, source = null;

  function state(text, bad) {
    if (connection.textContent !== text) connection.textContent = text;
    connection.classList.toggle("bad", bad);
  }

  function schedule() {
    if (due || running) { due = due || -1; return; }
    const wait = Math.max(PAUSE_MS, started + LEAST_MS - performance.now());
    due = setTimeout(refresh, wait);
  }

  async function refresh() {
    due = 0; running = true; started = performance.now();
    try {
      const reply = await fetch(location.href, {headers: {accept: "text/html"}, cache: "no-store"});
      const fetched = new DOMParser().parseFromString(await reply.text(), "text/html");
      if (document.querySelector("[data-problem]") && reply.ok) { location.reload(); return; }
      if (reply.ok) exchange(fetched);
    } catch { /* The stream reports a lost connection. */ } finally {
      running = false;
      if (due) { due = 0; schedule(); }
    }
  }

  function exchange(fetched) {
    const focused = document.activeElement, link = focused && focused.getAttribute && focused.getAttribute("href");
    for (const part of document.querySelectorAll("[data-live], .phase")) {
      const other = part.id ? fetched.getElementById(part.id) : fetched.querySelector(".phase");
      if (!other || part.innerHTML === other.innerHTML && part.className === other.className) continue;
      const inside = part.contains(focused);
      const left = [...part.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
      part.className = other.className;
      part.replaceChildren(...other.childNodes);
      part.querySelectorAll(".scroll").forEach((box, i) => { box.scrollLeft = left[i] || 0; });
      if (inside && link) [...part.querySelectorAll("a")].find((a) => a.getAttribute("href") === link)?.focus();
    }
    document.dispatchEvent(new CustomEvent("puf:refreshed"));
  }

  function add(entry) {
    if (!list) return;
    const item = document.createElement("li"), number = document.createElement("span");
    const time = document.createElement("time"), event = document.createElement("b"), text = document.createElement("span");
    const at = new Date(entry.at * 1000).toISOString();
    item.dataset.number = entry.number; item.className = "fresh";
    number.className = "soft number"; number.textContent = entry.number;
    time.dateTime = at; time.textContent = at.slice(0, 19).replace("T", " ");
    event.textContent = entry.event;
    text.className = "text"; text.textContent = entry.text;
    item.append(number, " ", time, " ", event, " ", text);
    list.prepend(item);
    while (list.children.length > MOST_EVENTS) list.lastElementChild.remove();
  }

  const visible = () => document.visibilityState === "visible";

  function connect() {
    if (source || !visible()) return;
    source = new EventSource(`/events?after=${last}`);
    source.addEventListener("audit", (message) => {
      const entry = JSON.parse(message.data);
      // A repeated or reordered event would be a fault of the server; the list must not show it twice.
      if (entry.number <= last) return;
      last = entry.number;
      add(entry);
      document.dispatchEvent(new CustomEvent("puf:event", {detail: entry.event}));
      schedule();
    });
    source.addEventListener("link", (message) => {
      const {problem} = JSON.parse(message.data);
      state(problem ? "server not reachable" : "live", Boolean(problem));
      if (!problem) schedule();
    });
    source.addEventListener("reset", () => location.reload());
    source.onerror = () => {
      state("reconnecting", true);
      if (source.readyState === EventSource.CLOSED) { source = null; setTimeout(connect, RETRY_MS); }
    };
  }

  function disconnect() {
    if (source) source.close();
    source = null;
  }

  // Heartbeats and transfers cause no event.
  setInterval(() => { if (visible()) schedule(); }, IDLE_MS);
  // A browser has few connections to one server. A hidden page gives up its own and catches up when it is seen again.
  document.addEventListener("visibilitychange", () => {
    if (visible()) { connect(); schedule(); } else disconnect();
  });
  addEventListener("pagehide", disconnect);
  addEventListener("pageshow", (event) => { if (event.persisted) connect(); });
  connect();
})();
