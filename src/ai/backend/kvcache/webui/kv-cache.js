/*
 * The menu entry "KV Cache" of Backend.AI's WebUI, and the frame of its page.
 *
 * The web server serves this file from its dist/plugins, and browsers keep it for a day. So it stays
 * as it is from version to version, and the page itself comes from the manager, in the manager's own
 * version.
 */

const NAME = 'kv-cache';
const SOURCE = '/func/kvcache/ui';

const sheet = new CSSStyleSheet();
// The WebUI lays pages out beside one another, and would begin this one half way down.
sheet.replaceSync(`
  :host { display: none; }
  :host([active]) { display: block; flex: 9999 1 0% !important; min-height: 0; overflow: auto; }
  p { margin: 24px; color: var(--color-text-primary, CanvasText); }
`);

const FAILED = {
  en: 'The page of the KV cache plugin cannot be loaded. Is the plugin installed beside the manager?',
  ko: 'KV 캐시 플러그인의 페이지를 불러올 수 없습니다. 매니저에 플러그인이 설치되어 있는지 확인하세요.',
};

class KVCache extends HTMLElement {
  #active = false;
  #page = null;
  #isLoading = false;

  constructor() {
    super();
    this.menuitem = 'KV Cache';
    this.group = 'admin-operations';
    // This hides the menu entry. It is the manager that refuses.
    this.permission = 'superadmin';
    this.attachShadow({ mode: 'open' }).adoptedStyleSheets = [sheet];
  }

  connectedCallback() {
    // The WebUI tells pages when its path changes. To a page that was opened by its address, and
    // is there only after that, it says nothing.
    if (location.pathname.split('/')[1] === NAME) {
      this.setAttribute('active', '');
      this.active = true;
    }
  }

  get active() {
    return this.#active;
  }

  set active(active) {
    this.#active = active;
    if (this.#page) {
      this.#page.active = active;
    } else if (active && !this.#isLoading) {
      this.#load();
    }
  }

  async #load() {
    this.#isLoading = true;
    try {
      const answer = await fetch(SOURCE);
      if (!answer.ok) {
        throw new Error(`${SOURCE}: ${answer.status} ${answer.statusText}`);
      }
      const { version } = await answer.json();
      await import(`${SOURCE}/${version}/page.js`);
      this.#page = document.createElement(`${NAME}-page`);
      this.#page.active = this.#active;
      this.shadowRoot.replaceChildren(this.#page);
    } catch (error) {
      this.#explain(error);
    } finally {
      this.#isLoading = false;
    }
  }

  #explain(error) {
    const language = globalThis.backendaioptions?.get('language', 'en', 'general');
    const explanation = document.createElement('p');
    explanation.textContent = `${FAILED[language] ?? FAILED.en} (${error.message})`;
    this.shadowRoot.replaceChildren(explanation);
  }
}

customElements.define(NAME, KVCache);
