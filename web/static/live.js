// Follows the stream of a page: the server sends the content again whenever it has changed.
import { morphContent } from "./morph.js";
import { showTimes } from "./times.js";

const lostAfter = 2500; // milliseconds without an event; the server sends one each second
const retryAfter = 1000;

export function follow(main) {
  const banner = document.getElementById("lost");
  let source = null, last = Date.now(), current = Date.now(), problem = "";

  const heard = () => { last = Date.now(); };
  const isCurrent = () => { heard(); current = last; problem = ""; };

  function open() {
    close();
    last = Date.now();
    source = new EventSource(location.href);
    source.addEventListener("main", (event) => {
      isCurrent();
      const next = new DOMParser().parseFromString(event.data, "text/html").body;
      showTimes(next);
      morphContent(main, next);
    });
    source.addEventListener("same", isCurrent);
    source.addEventListener("problem", (event) => { heard(); problem = event.data; });
    source.addEventListener("end", () => location.reload()); // leads to the sign-in page
  }

  function close() {
    if (source) source.close();
    source = null;
  }

  function check() {
    if (document.hidden) return;
    const silent = Date.now() - last > lostAfter;
    if (silent && (!source || source.readyState === EventSource.CLOSED || Date.now() - last > 5 * lostAfter)) {
      const since = current;
      open();
      current = since;
    }
    const lost = silent || Date.now() - current > lostAfter;
    banner.hidden = !lost;
    if (!lost) return;
    banner.querySelector("time").setAttribute("datetime", new Date(current).toISOString());
    banner.querySelector("output").textContent = problem;
    showTimes(banner);
  }

  // A page that nobody looks at reads nothing.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else open();
  });
  addEventListener("pagehide", close);
  open();
  setInterval(check, Math.min(retryAfter, 500));
}
