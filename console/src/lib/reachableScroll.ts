// A part of a page that scrolls must be reachable by keyboard: it can take the focus if nothing inside it can.

const SCROLLING = ".scroll, .card";
const FOCUSABLE = "a[href], button, input, select, textarea, [tabindex]";
const EVERY_MS = 50;

/** For the main part of the page: watches what is in it, at most every 50 ms. */
export function reachableScroll(main: HTMLElement): { destroy: () => void } {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let checkedAt = -EVERY_MS;
  const check = () => {
    timer = undefined;
    checkedAt = performance.now();
    for (const part of main.querySelectorAll<HTMLElement>(SCROLLING)) {
      const needed = part.scrollWidth > part.clientWidth + 1 && !part.querySelector(FOCUSABLE);
      if (needed && !part.hasAttribute("tabindex")) {
        part.tabIndex = 0;
        part.dataset.scrolls = "yes";
      } else if (!needed && part.dataset.scrolls) {
        part.removeAttribute("tabindex");
        delete part.dataset.scrolls;
      }
    }
  };
  const soon = () => { timer ??= setTimeout(check, Math.max(0, checkedAt + EVERY_MS - performance.now())); };
  const content = new MutationObserver(soon);
  content.observe(main, { childList: true, characterData: true, subtree: true });
  const size = new ResizeObserver(soon);
  size.observe(main);
  return {
    destroy: () => {
      clearTimeout(timer);
      content.disconnect();
      size.disconnect();
    },
  };
}
